"""Held-out loss, weighted by tokens: the same tokens and the same number whatever the training batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from areca.config import RunConfig
from areca.data.batches import heldout
from areca.data.store import TokenStore
from areca.model import decoder
from areca.model.layout import DATA, ONE_DEVICE, Layout


class Evaluator:
    """Held-out cross-entropy of a run's model. Compiles once; `compile_seconds` is apart."""

    def __init__(
        self,
        config: RunConfig,
        store: TokenStore,
        params: decoder.Decoder,
        mixture: Mapping[str, float] | None = None,
        layout: Layout = ONE_DEVICE,
        mesh: Mesh | None = None,
    ) -> None:
        """`mixture` has the shares that training was told to mix corpora in; None where each weighs its size."""
        self.config, self.store, self.mixture = config, store, mixture
        self.corpora = [c.name for c in store.corpora if c.heldout_tokens > 1]
        total = sum(c.heldout_tokens for c in store.corpora)
        limit = config.evaluation.max_tokens
        # Each corpus gives its share of the tokens that are read, so the overall mean is that of the whole text.
        self.limits = {
            c.name: 0 if not limit or limit >= total else max(1, round(limit * c.heldout_tokens / total))
            for c in store.corpora
        }

        batch, context = config.evaluation.batch, config.data.context
        tokens = jax.ShapeDtypeStruct((batch, context + 1), jnp.int32)
        weight = jax.ShapeDtypeStruct((batch, context), jnp.float32)
        self._sums = self._compile(params, tokens, weight, layout, mesh)

    def _compile(self, params: Any, tokens: Any, weight: Any, layout: Layout, mesh: Mesh | None) -> Any:
        """What sums the losses of a batch, compiled for arguments of these shapes."""
        return jax.jit(sums_of(self.config, params, layout, mesh)).lower(params, tokens, weight).compile()

    def _each(self, params: Any, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Any]:
        """The sums of each batch, in order."""
        for tokens, weight in batches:
            yield self._sums(params, tokens, weight)

    def __call__(self, params: Any) -> dict[str, Any]:
        """`{"loss", "by_corpus", "tokens"}`: nats a token, over all and over each corpus.

        Over all means: of every held-out token alike, or with a mixture, each corpus' mean by its share, so that the
        number is the loss on text of the kind that was trained on.
        """
        totals: dict[str, np.ndarray] = {}
        for name in self.corpora:
            total = np.zeros(2)
            context, batch = self.config.data.context, self.config.evaluation.batch
            for sums in self._each(params, heldout(self.store, context, batch, self.limits[name], corpus=name)):
                total += np.asarray(sums, np.float64)
            totals[name] = total
        loss_sum, tokens = np.sum(list(totals.values()), axis=0)
        by_corpus = {name: float(t[0] / t[1]) for name, t in totals.items()}
        loss = float(loss_sum / tokens)
        if self.mixture:
            shares = {name: share for name, share in self.mixture.items() if name in by_corpus}
            loss = sum(share * by_corpus[name] for name, share in shares.items()) / sum(shares.values())
        return {"loss": loss, "by_corpus": by_corpus, "tokens": int(tokens)}


def sums_of(config: RunConfig, params: Any, layout: Layout, mesh: Any) -> Callable[[Any, Array, Array], Array]:
    """sums(params, tokens_BS, weight_BT) -> [2]: the weighted sum of the tokens' losses (nats), and of the weights."""

    def losses(params: decoder.Decoder, tokens_BS: Array) -> Array:
        return decoder.losses(config.model, params, tokens_BS, layout)

    if mesh is not None:
        losses = layout.on_mesh(losses, mesh, (layout.specs(params), P(DATA)), P(DATA))

    def sums(params: decoder.Decoder, tokens_BS: Array, weight_BT: Array) -> Array:
        loss_BT = losses(params, tokens_BS)
        return jnp.stack([jnp.sum(loss_BT * weight_BT), jnp.sum(weight_BT)])

    return sums
