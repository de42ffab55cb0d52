"""Attention within documents: what a packed context gives is what each of its documents gives alone."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ConfigError
from areca.model import decoder
from areca.model.attention import attention, documents
from areca.model.config import ModelConfig
from areca.model.counts import exact_flops_per_token
from areca.model.decoder import attention_over
from areca.model.scores import scores

END = 3
CONFIG = ModelConfig(23, 12, 2, 3, head_dim=4, d_ff=20, document_mask=True, document_end=END)
LENGTHS = (5, 1, 9, 17, 2, 6)  # of the documents; the first has lost its beginning, the last its end


def _packed(seed: int = 0) -> np.ndarray:
    """Documents in a row, the first without the token that comes before the others."""
    rng = np.random.default_rng(seed)
    found = [rng.integers(END + 1, 23, n) for n in LENGTHS]
    return np.concatenate([found[0], *([END, *d] for d in found[1:])]).astype(np.int32)


def _plain(document_BS):
    def within(q_BTHK, k_BSGK, v_BSGK):
        """The whole T x T matrix, a source seen if it is no later and of the same document."""
        k, v = (jnp.repeat(x, q_BTHK.shape[2] // x.shape[2], axis=2) for x in (k_BSGK, v_BSGK))
        score = jnp.einsum("bthk,bshk->bhts", q_BTHK, k) / jnp.sqrt(jnp.float32(q_BTHK.shape[-1]))
        same = document_BS[:, :, None] == document_BS[:, None, :]
        seen = same & jnp.tril(jnp.ones(score.shape[-2:], bool))[None]
        weight = jax.nn.softmax(jnp.where(seen[:, None], score, -jnp.inf), axis=-1)
        return jnp.einsum("bhts,bshk->bthk", weight, v)

    return within


# Blocks of 128 queries, written out, and looped over in stretches.
@pytest.mark.parametrize(("T", "H", "G", "looped"), [(40, 2, 1, False), (300, 4, 2, False), (9 * 128 + 5, 2, 2, True)])
def test_values_and_gradients_are_those_of_plain_attention_within_documents(T, H, G, looped, monkeypatch):
    if looped:
        monkeypatch.setattr("areca.model.attention.UNROLLED", 2)
    rng = np.random.default_rng(T)
    q, k, v, out = (rng.normal(size=(2, T, n, 4)).astype(np.float32) for n in (H, G, G, H))
    document_BS = jnp.asarray(np.cumsum(rng.random((2, T)) < 0.05, axis=1).astype(np.int32))
    found = []
    for function in (lambda *x: attention(*x, document_BS), _plain(document_BS)):
        value, pull = jax.jit(lambda *x, f=function: jax.vjp(f, *x))(q, k, v)
        found.append([value, *pull(out)])
    for ours, plain in zip(*found, strict=True):
        np.testing.assert_allclose(ours, plain, atol=2e-5, rtol=2e-5)


def test_the_token_between_documents_belongs_to_the_one_that_it_begins():
    tokens = np.array([[7, 8, END, 9, END, END, 5], [END, 4, 4, 4, 4, 4, 4]], np.int32)
    assert documents(jnp.asarray(tokens), END).tolist() == [[0, 0, 1, 1, 2, 3, 3], [1] * 7]


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_kv_heads": 3}, {"block": "serial", "mlp": "gelu", "tied": False, "biases": True}],
    ids=["multi-query", "multi-head", "serial"],
)
def test_a_packed_context_gives_the_logits_of_each_document_alone(changes):
    config = replace(CONFIG, **changes).resolved()
    params = jax.jit(lambda: decoder.init(config, jax.random.key(1)))()
    packed = _packed()
    together = np.asarray(jax.jit(lambda t: decoder.logits(config, params, t))(packed[None]))[0]
    unmasked = replace(config, document_mask=False)
    apart = jax.jit(lambda t: decoder.logits(unmasked, params, t))
    starts = [0, *np.flatnonzero(packed == END)]
    for start, stop in zip(starts, [*starts[1:], len(packed)], strict=True):
        alone = np.zeros((1, len(packed)), np.int32)  # one length, one program: causality hides what follows
        alone[0, : stop - start] = packed[start:stop]
        np.testing.assert_allclose(together[start:stop], apart(alone)[0, : stop - start], atol=2e-5)
    assert np.abs(together - np.asarray(apart(packed[None]))[0]).max() > 0.1  # and the mask matters


def test_a_document_changes_nothing_after_its_end_and_nothing_else_before():
    config = CONFIG.resolved()
    params = jax.jit(lambda: decoder.init(config, jax.random.key(1)))()
    losses = jax.jit(lambda t: decoder.losses(config, params, t))
    one, other = _packed(), _packed()
    other[:5] = other[:5][::-1]
    a, b = (np.asarray(losses(t[None]))[0] for t in (one, other))
    assert not np.array_equal(a[:4], b[:4])
    # The token after the boundary is predicted from the boundary alone; the boundary itself from the document before.
    assert np.array_equal(a[5:], b[5:])


def test_scores_of_one_document_are_the_masked_training_loss():
    config = CONFIG.resolved()
    params = jax.jit(lambda: decoder.init(config, jax.random.key(1)))()
    document = [END, *_packed()[8:17].tolist()]
    loss = jax.jit(lambda t: decoder.losses(config, params, t))(np.array([document], np.int32))[0]
    [found] = scores(config, params, [(document[:1], document[1:])], context=32)
    np.testing.assert_allclose(found.tokens, -np.asarray(loss), atol=1e-5)


def test_without_the_option_nothing_of_it_is_there():
    plain = replace(CONFIG, document_mask=False)
    assert attention_over(plain, jnp.zeros((1, 4), jnp.int32)) is attention
    params = jax.eval_shape(lambda: decoder.init(CONFIG, jax.random.key(0)))
    tokens = jax.ShapeDtypeStruct((2, 17), jnp.int32)
    traced = [str(jax.make_jaxpr(lambda p, t, c=c: decoder.loss(c, p, t))(params, tokens)) for c in (plain, CONFIG)]
    assert "cumsum" not in traced[0]
    assert "cumsum" in traced[1]


def test_flops_are_counted_as_ever_since_the_convention_is_the_full_square():
    assert exact_flops_per_token(CONFIG, 64) == exact_flops_per_token(replace(CONFIG, document_mask=False), 64)


def test_learned_positions_do_not_go_with_it():
    with pytest.raises(ConfigError, match="document_mask is true and positions is 'learned'"):
        replace(CONFIG, positions="learned", n_positions=64).resolved()
