"""How likely a model finds given continuations: what few-shot evaluation asks of it.

Legend: B texts, T position, D model width, V vocabulary, R positions whose logits exist at one time.

Texts are grouped by length and padded to a few lengths (`lanes.bucket`), so that few programs are compiled. Padding is
on the right, where causality hides it.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from areca.errors import ConfigError
from areca.model import decoder
from areca.model.config import ModelConfig
from areca.model.lanes import bucket

SHORTEST = 32  # positions that the shortest texts are padded to
AT_ONCE = 4096  # positions of one batch
LOGITS_AT_ONCE = 256


@dataclass(frozen=True)
class Scored:
    """A continuation's log-probabilities, in nats, token by token; and whether each was the likeliest of all."""

    tokens: list[float]
    greedy: list[bool]

    @property
    def total(self) -> float:
        """log P(continuation | context), in nats."""
        return float(np.sum(self.tokens))


def scores(
    config: ModelConfig,
    params: decoder.Decoder,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    context: int,
) -> list[Scored]:
    """log P of each (context, continuation), given as token ids, in the order given.

    Each is one document: a model's `document_mask`, which is about several in a context, makes no difference.
    What is longer than the model's `context` loses tokens at the beginning of its context, none of its continuation.

    Raises:
        ConfigError: an empty context (nothing predicts its first token: begin with the token that ends documents), a
            continuation longer than `context`, an id that the model does not have.
    """
    config = replace(config, document_mask=False)
    rows: list[np.ndarray] = []
    for before, after in texts:
        ids = np.array([*before, *after], np.int64)
        if not len(before):
            raise ConfigError("a context has no tokens; begin with the token that ends documents.")
        if len(after) > context:
            raise ConfigError(
                f"a continuation is {len(after)} tokens long and the model was trained on {context} at a time; cut it."
            )
        if len(ids) and not (ids.min() >= 0 and ids.max() < config.vocab_size):
            raise ConfigError(f"a text has a token outside of the model's vocabulary of {config.vocab_size}.")
        rows.append(ids[-context - 1 :])
    found: list[Scored | None] = [None] * len(rows)
    groups: dict[int, list[int]] = {}
    for i, ids in enumerate(rows):
        groups.setdefault(bucket(len(ids) - 1, context, SHORTEST), []).append(i)
    for T, members in groups.items():
        B = max(1, AT_ONCE // T)
        for start in range(0, len(members), B):
            batch = members[start : start + B]
            tokens_BS = np.zeros((B, T + 1), np.int32)
            for row, i in zip(tokens_BS, batch, strict=False):
                row[: len(rows[i])] = rows[i]
            score_BT, greedy_BT = map(np.asarray, token_scores(config, params, tokens_BS))
            for row, i in enumerate(batch):
                end = len(rows[i]) - 1
                here = slice(end - len(texts[i][1]), end)
                found[i] = Scored(score_BT[row, here].tolist(), greedy_BT[row, here].tolist())
    return [s for s in found if s is not None]


@functools.partial(jax.jit, static_argnums=0)
def token_scores(
    config: ModelConfig, params: decoder.Decoder, tokens_BS: Int[Array, "B S"]
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """log P of tokens[:, 1:] given those before, S = T + 1; and whether each is the likeliest (or as likely)."""
    x_BTD = decoder.hidden(config, params, tokens_BS[:, :-1])
    B, T, D = x_BTD.shape
    R = min(LOGITS_AT_ONCE, B * T)
    blocks = -(-B * T // R)
    pad = blocks * R - B * T
    x_NRD = jnp.pad(x_BTD.reshape(B * T, D), ((0, pad), (0, 0))).reshape(blocks, R, D)
    target_NR = jnp.pad(tokens_BS[:, 1:].reshape(B * T), (0, pad)).reshape(blocks, R)

    def some(inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        x_RD, target_R = inputs
        logits_RV = decoder.unembed(params, x_RD[None])[0]
        logit_R = jnp.take_along_axis(logits_RV, target_R[:, None], axis=1)[:, 0]
        return logit_R - jax.nn.logsumexp(logits_RV, axis=1), logit_R >= jnp.max(logits_RV, axis=1)

    score, greedy = jax.lax.map(some, (x_NRD, target_NR))
    return score.reshape(-1)[: B * T].reshape(B, T), greedy.reshape(-1)[: B * T].reshape(B, T)
