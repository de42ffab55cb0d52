"""The gradient in segments: it is the gradient, wherever it is computed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from areca.config import ModelConfig, OptimizerConfig
from areca.errors import ConfigError
from areca.model import decoder
from areca.model.layout import Layout
from areca.pathways.island import Island
from areca.train.islands.exchange import sum_shards
from areca.train.islands.segments import Cut, Piece, assemble, pieces
from areca.train.step import finish, init_state, train_step

SHAPE = {"vocab_size": 31, "d_model": 8, "n_layers": 3, "n_heads": 2, "d_ff": 16}
TOKENS = np.random.default_rng(0).integers(0, 31, (4, 9)).astype(np.int32)
ONE, FOUR = Layout(remat="block"), Layout(2, 2, "block")
GPT = {"block": "serial", "n_kv_heads": 2, "mlp": "gelu", "positions": "learned", "n_positions": 10, "tied": False,
       "biases": True}  # fmt: skip
VARIANTS = {
    "palm": {},
    "grouped, serial, mup": {"n_heads": 4, "n_kv_heads": 2, "block": "serial", "base_width": 4},
    "gpt": GPT,
    "deep": {"n_layers": 8},  # more than are written out on one device
    "tied, learned": {"positions": "learned", "n_positions": 8, "biases": True},
}


def _model(**changes) -> ModelConfig:
    return ModelConfig(**(SHAPE | changes))


def _params(model: ModelConfig):
    """With no zeros or ones in them, that every gradient has its own."""
    params = jax.jit(lambda: decoder.init(model, jax.random.key(1)))()
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(2)
    return tree.unflatten([a + 0.1 * rng.standard_normal(a.shape).astype(np.float32) for a in leaves])


_COMPILED = {}


def _run(cut: Cut, piece: Piece, island: Island, *values):
    """A piece compiled for an island's mesh, as the controller does, and run there."""
    lies = partial(jax.tree.map, lambda s: NamedSharding(island.mesh, s), is_leaf=lambda s: isinstance(s, P))
    key = piece.name, cut.model, cut.layout, island.devices, values[1].shape
    if key not in _COMPILED:
        jitted = jax.jit(piece.function, in_shardings=lies(piece.specs), out_shardings=lies(piece.out_specs))
        _COMPILED[key] = jitted.lower(*piece.inputs).compile()
    return _COMPILED[key](*jax.device_put(values, lies(piece.specs)))


def _gradient(cut: Cut, island: Island, params, tokens=TOKENS):
    made = pieces(cut, params, tokens.shape[0], tokens.shape[1] - 1)
    x, last = _run(cut, made.forward, island, params, tokens)
    head, parts, dx = _run(cut, made.head, island, params, last, tokens)
    layers = []
    for piece, first in made.segments:
        grads, dx = _run(cut, piece, island, params, x, dx, np.int32(first))
        layers.insert(0, grads)
    embedding = _run(cut, made.embedding, island, params, tokens, dx)
    return assemble(cut.model, head, layers, embedding), parts


def _island(layout: Layout, start: int = 0) -> Island:
    devices = jax.devices()[start : start + layout.devices]
    return Island(f"island at {start}", devices, (layout.data, layout.model))


def _bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def _whole(model: ModelConfig, params):
    """jax.grad of the loss as it is written, on one device."""
    objective = jax.grad(lambda p: decoder.loss(model, p, jnp.asarray(TOKENS), 1e-4), has_aux=True)
    return jax.jit(objective)(params)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(
            n, k, id=f"{n}-{'one device' if k is ONE else '2 x 2'}", marks=[] if each else pytest.mark.exhaustive
        )
        for i, n in enumerate(VARIANTS)
        for k, each in ((ONE, i % 2), (FOUR, not i % 2))
    ],
)
def test_the_gradient_in_segments_is_the_gradient(name, layout):
    model = _model(**VARIANTS[name])
    params = _params(model)
    expected, parts = _whole(model, params)
    counts = (1, 2, model.n_layers) if name == "palm" else (3 if name == "deep" else 2,)
    cuts = [Cut(model, segments, layout) for segments in counts]
    cuts += [Cut(model, 2, layout, lengths=lengths) for lengths in ((1, 2), (2, 1)) if name == "palm"]
    for cut in cuts:
        found, found_parts = _gradient(cut, _island(layout), params)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        largest = max(float(jnp.max(jnp.abs(b))) for b in jax.tree.leaves(expected))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            # Float32's rounding against the size of a leaf's gradient, not of a single entry that nearly cancels. (The
            # gradient of a key's bias without rotations is zero.)
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=3e-6 * float(jnp.max(jnp.abs(b))) + 1e-7 * largest)
            assert np.any(b)
        np.testing.assert_allclose(found_parts, parts, rtol=1e-6)


@pytest.mark.parametrize("layout", [pytest.param(ONE, marks=pytest.mark.exhaustive), FOUR], ids=["one device", "2 x 2"])
def test_shards_have_the_same_bits_on_whichever_island_they_are_computed(layout):
    # Two islands' devices, four shards: all on one island, and spread in another order.
    model = _model()
    params, cut = _params(model), Cut(model, 2, layout)
    here, there = _island(layout), _island(layout, 4)
    shards = [TOKENS[i : i + 2] for i in (0, 2)] + [TOKENS[i : i + 2][::-1] for i in (0, 2)]
    alone = [_gradient(cut, here, params, s)[0] for s in shards]
    spread = [
        _gradient(cut, island, params, s)[0] for island, s in zip((there, here, here, there), shards, strict=True)
    ]
    assert _bits(alone) == _bits(spread)
    assert _bits(alone[0]) != _bits(alone[1])
    totals = [jax.jit(sum_shards)(jax.tree.map(np.asarray, g)) for g in (alone, spread)]
    assert _bits(totals[0]) == _bits(totals[1])


def test_lengths_are_from_the_last_layers_to_the_first():
    cut = Cut(_model(n_layers=7), 3, ONE, lengths=(4, 2, 1))
    assert cut.bounds == [(0, 1), (1, 3), (3, 7)]
    assert [first for _, first in pieces(cut, _params(cut.model), 2, 4).segments] == [3, 1, 0]


@pytest.mark.parametrize("lengths", [(4, 2), (4, 3, 1), (7, 0), (8, -1), (4, 2, 1, 0), (7,)])
def test_lengths_that_are_not_all_layers_once_are_refused(lengths):
    with pytest.raises(
        ConfigError, match=r"islands.lengths is \[.*\], for 3 segments of a model of 7 layers; give each"
    ):
        Cut(_model(n_layers=7), 3, ONE, lengths=lengths)


def test_the_step_from_shards_is_the_step():
    # Two shards in segments, summed and finished, beside train_step on the whole batch.
    model, optimizer = _model(), OptimizerConfig(z_loss=1e-4, clip_norm=0.1)
    state = jax.jit(lambda: init_state(model, optimizer, 0))()
    rate = jnp.float32(1e-2)
    expected, expected_metrics = jax.jit(partial(train_step, model, optimizer))(state, TOKENS, rate)
    cut = Cut(model, 2, ONE, optimizer.z_loss)
    shards = [_gradient(cut, _island(ONE), state.params, TOKENS[i : i + 2]) for i in (0, 2)]
    grads, parts = jax.jit(sum_shards)(shards)
    found, metrics = jax.jit(partial(finish, model, optimizer))(state, grads, parts, rate)
    np.testing.assert_allclose(metrics, expected_metrics, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("segments", "layout", "changes", "words"),
    [
        (0, ONE, {}, "segments is 0 and the model has 3 layers; choose from 1 to 3"),
        (4, ONE, {}, "segments is 4 and the model has 3 layers"),
        (1, Layout(), {}, "remat is 'none'"),
        (1, Layout(remat="selective"), {}, "set parallel.remat to 'block'"),
        (1, Layout(3, 1, "block"), {}, "d_model 8 is not divisible by 3"),
    ],
)
def test_a_cut_that_can_not_be_is_refused(segments, layout, changes, words):
    with pytest.raises(ConfigError) as caught:
        Cut(_model(**changes), segments, layout)
    assert words in str(caught.value)


def test_shards_that_do_not_fit_are_refused():
    model = _model(**GPT)
    params = jax.eval_shape(lambda: decoder.init(model, jax.random.key(0)))
    with pytest.raises(ConfigError, match="a shard of the batch is 3 sequences, which the mesh's data axis of 2"):
        pieces(Cut(model, 1, FOUR), params, 3, 8)
    with pytest.raises(ConfigError, match="context is 11 and the model learns 10 positions"):
        pieces(Cut(model, 1, ONE), params, 2, 11)
