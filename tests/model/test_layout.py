"""A decoder on a mesh: the same numbers on every mesh, kernels gathered where a layer is computed, little kept."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from areca.config import OptimizerConfig
from areca.errors import ConfigError
from areca.model import decoder
from areca.model.config import PRESETS, ModelConfig
from areca.model.layout import Layout
from areca.train import step
from areca.train.ahead.dryrun import UNRUN

# Odd where a mesh allows it: V is no multiple of anything, F and T are no powers of two.
ODD = ModelConfig(vocab_size=301, d_model=32, n_layers=3, n_heads=8, head_dim=6, d_ff=40).resolved()
MESHES = [(8, 1), (1, 8), (4, 2), (2, 4)]


def _tokens(batch=8, context=19):
    return jax.random.randint(jax.random.key(1), (batch, context + 1), 0, ODD.vocab_size)


def _on(layout, params):
    """The parameters on the layout's mesh, and the mesh."""
    if layout.devices == 1:
        return params, None
    mesh = layout.mesh()
    return jax.device_put(params, layout.shardings(params, mesh)), mesh


@pytest.fixture(scope="module")
def one_device():
    params = decoder.init(ODD, jax.random.key(0))
    return params, jax.jit(lambda p, t: step.gradients(ODD, 1e-4, p, t))(params, _tokens())


@pytest.mark.parametrize("mesh", MESHES)
def test_loss_and_gradients_are_those_of_one_device(mesh, one_device):
    params, (grads, parts) = one_device
    layout = Layout(*mesh, "block")
    layout.check(ODD)
    cut, mesh = _on(layout, params)
    found, found_parts = jax.jit(lambda p, t: step.gradients(ODD, 1e-4, p, t, layout, mesh))(cut, _tokens())
    assert float(found_parts.loss) == pytest.approx(float(parts.loss), rel=3e-7)
    assert float(found_parts.z_loss) == pytest.approx(float(parts.z_loss), rel=3e-6)
    for path, ours in jax.tree_util.tree_flatten_with_path(found)[0]:
        theirs = np.asarray(_leaf(grads, path))
        assert np.abs(np.asarray(ours) - theirs).max() <= 4e-6 * np.abs(theirs).max(), jax.tree_util.keystr(path)
        assert _cut(ours, layout.devices), jax.tree_util.keystr(path)


# Key-value heads as many as the axis has devices, more of them, and fewer: 8, 4 and 2 on an axis of 4.
GPT2 = ModelConfig(
    vocab_size=301, d_model=32, n_layers=2, n_heads=8, head_dim=4, d_ff=40, block="serial", n_kv_heads=8, mlp="gelu",
    positions="learned", n_positions=24, tied=False, biases=True,
).resolved()  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 4, "mlp": "swiglu"}, {"n_kv_heads": 2, "block": "parallel"}])
@pytest.mark.parametrize("remat", ["block", pytest.param("selective", marks=pytest.mark.exhaustive)])
def test_every_choice_of_the_block_is_the_same_on_a_mesh(changes, remat):
    model = dataclasses.replace(GPT2, **changes)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda a: a + 0.1 * rng.normal(size=a.shape).astype(np.float32), decoder.init(model, jax.random.key(0))
    )
    grads, parts = jax.jit(lambda p, t: step.gradients(model, 1e-4, p, t))(params, _tokens())
    layout = Layout(2, 4, remat)
    layout.check(model)
    cut, mesh = _on(layout, params)
    found, found_parts = jax.jit(lambda p, t: step.gradients(model, 1e-4, p, t, layout, mesh))(cut, _tokens())
    assert float(found_parts.loss) == pytest.approx(float(parts.loss), rel=3e-7)
    for path, ours in jax.tree_util.tree_flatten_with_path(found)[0]:
        theirs = np.asarray(_leaf(grads, path))
        # A key's bias changes no attention weight: its gradient is rounding, so the query's is the measure.
        size = np.abs(np.asarray(_leaf(grads, path) if "key_bias" not in str(path) else grads.layers.query_bias)).max()
        assert np.abs(np.asarray(ours) - theirs).max() <= 1e-5 * size, jax.tree_util.keystr(path)
        assert _cut(ours, layout.devices), jax.tree_util.keystr(path)


def _leaf(tree, path):
    for key in path:
        tree = getattr(tree, key.name)
    return tree


def _cut(array, devices):
    """Whether every device holds an equal part and nothing twice."""
    return array.addressable_shards[0].data.size * devices == array.size


@pytest.mark.parametrize("remat", ["none", "selective"])
def test_what_is_kept_does_not_change_the_gradients(remat, one_device):
    params, (grads, _) = one_device
    for sizes in ((1, 1), (2, 2)):
        layout = Layout(*sizes, remat)
        cut, mesh = _on(layout, params)
        found, _ = jax.jit(lambda p, t, l=layout, m=mesh: step.gradients(ODD, 1e-4, p, t, l, m))(cut, _tokens())
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(grads), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=4e-6 * float(jnp.abs(theirs).max()))


@pytest.mark.parametrize("sizes", [(8, 1), (2, 4)])
def test_the_first_state_has_the_same_bits_on_every_mesh(sizes):
    alone = step.first_state(ODD, OptimizerConfig(), 3)
    layout = Layout(*sizes)
    cut = step.first_state(ODD, OptimizerConfig(), 3, layout, layout.mesh())
    for ours, theirs in zip(jax.tree.leaves(cut), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(_cut(leaf, 8) for leaf in jax.tree.leaves(cut.params))


def _drawing(model, layout):
    """(bytes of a device's state, of the temporaries of making it, of the largest array that it draws at once)."""
    traced = step.trace_first_state(model, OptimizerConfig(), layout, layout.mesh())
    memory = traced.lower().compile(compiler_options=UNRUN).memory_analysis()
    c = model.resolved()
    largest = max(c.vocab_size * c.d_model, c.d_model * c.d_ff, c.d_model * c.n_heads * c.head_dim)
    return memory.output_size_in_bytes, memory.temp_size_in_bytes, 4 * largest // layout.devices


@pytest.mark.parametrize("sizes", [(4, 2), (1, 8)])
def test_a_device_draws_only_its_pieces_one_layer_at_a_time(sizes):
    model = ModelConfig(vocab_size=301, d_model=128, n_layers=24, n_heads=8, d_ff=512).resolved()
    layout = Layout(*sizes)
    _, temporaries, largest = _drawing(model, layout)
    assert temporaries < 6 * largest  # of 24 layers: a whole leaf's bits would be 3 x 24
    # So that where a step fits, its first state fits: a step has more beside the same state.
    lowered = step.trace_step(
        model, OptimizerConfig(), step.abstract_state(model, OptimizerConfig(), layout, layout.mesh()),
        8, 8, layout, layout.mesh(),
    ).lower()  # fmt: skip
    assert temporaries < lowered.compile(compiler_options=UNRUN).memory_analysis().temp_size_in_bytes


def test_the_first_state_of_palm_540b_is_made_in_little_more_than_itself():
    state, temporaries, largest = _drawing(PRESETS["palm-540b"], Layout(4, 2))
    assert state == pytest.approx(12 * 540.356e9 / 8, rel=1e-3)
    assert temporaries < 4 * largest  # the embedding's piece
    assert temporaries < 0.01 * state


def test_three_steps_on_a_mesh_are_three_steps_on_one_device():
    optimizer = OptimizerConfig(learning_rate=0.02)
    states = []
    for sizes in ((1, 1), (4, 2)):
        layout = Layout(*sizes, "none" if sizes == (1, 1) else "block")
        mesh = layout.mesh() if layout.devices > 1 else None
        program = step.compile_step(
            ODD, optimizer, step.abstract_state(ODD, optimizer, layout, mesh), 8, 19, layout, mesh
        )
        state = step.first_state(ODD, optimizer, 0, layout, mesh)
        for _ in range(3):
            state, metrics = program(state, np.asarray(_tokens()), np.float32(0.02))
        states.append((state, np.asarray(metrics)))
    (alone, metrics), (cut, cut_metrics) = states
    np.testing.assert_allclose(cut_metrics, metrics, rtol=2e-5)
    for ours, theirs in zip(jax.tree.leaves(cut.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5 * float(jnp.abs(theirs).max()))


def test_losses_of_an_evaluation_are_those_of_one_device(one_device):
    params, _ = one_device
    expected = decoder.losses(ODD, params, _tokens())
    layout = Layout(2, 4)
    cut, mesh = _on(layout, params)
    on_mesh = layout.on_mesh(
        lambda p, t: decoder.losses(ODD, p, t, layout), mesh, (layout.specs(params), P("data")), P("data")
    )
    np.testing.assert_allclose(jax.jit(on_mesh)(cut, _tokens()), expected, rtol=2e-5, atol=2e-5)


# --- what the compiled program does


@functools.cache
def _program(remat):
    model = ModelConfig(vocab_size=304, d_model=64, n_layers=12, n_heads=8, head_dim=8, d_ff=128).resolved()
    layout = Layout(4, 2, remat)
    mesh = layout.mesh()
    optimizer = OptimizerConfig()
    state = step.abstract_state(model, optimizer, layout, mesh)
    return model, step.compile_step(model, optimizer, state, 8, 24, layout, mesh).as_text()


def _computations(text):
    """{name: its lines}, and the computations that are bodies of loops of `n` rounds, {name: n}."""
    bodies, found = {}, {}
    for match in re.finditer(r"^(?:ENTRY )?(%\S+) \(.*?\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        found[match[1]] = match[2]
    for match in re.finditer(r"while\(.*?body=(%\S+?),.*?known_trip_count\D+(\d+)", text):
        bodies[match[1]] = int(match[2])
    return found, bodies


def test_kernels_are_gathered_inside_the_loop_over_layers_and_nowhere_else():
    model, text = _program("block")
    found, bodies = _computations(text)
    loops = [found[name] for name, rounds in bodies.items() if rounds == model.n_layers]
    assert len(loops) == 2  # forward, backward
    whole = r"f32\[64,(?:176|208)\]"  # D x (H K + 2 K + 2 F) of one device: 32 + 16 + 128
    for body in loops:
        assert re.search(whole + r"\S* all-gather", body)
    everywhere = len(re.findall(whole + r"\S* all-gather", text))
    assert everywhere == sum(len(re.findall(whole + r"\S* all-gather", body)) for body in loops)
    # No array of a loop holds whole kernels of all layers.
    assert not re.search(rf"f32\[{model.n_layers},64,176\]", text)


@pytest.mark.parametrize("remat", ["block", "none", "selective"])
def test_what_is_kept_of_all_layers_is_bounded(remat):
    """Under "block" one activation a layer, cut over all devices; whole kernels are kept under no policy."""
    model, text = _program(remat)
    L, B, T, D = model.n_layers, 8, 24, model.d_model
    kept = set()
    for match in re.finditer(r"= \((.*?)\) while\(", text):
        kept |= set(re.findall(rf"f32\[{L}((?:,\d+)+)\]", match[1]))
    sizes = {shape: L * math.prod(int(n) for n in shape.strip(",").split(",")) for shape in kept}
    parameters = {
        L * math.prod(leaf.shape[1:]) // 8
        for leaf in jax.tree.leaves(jax.eval_shape(lambda: decoder.init(model, jax.random.key(0))).layers)
    }
    activations = {shape: n for shape, n in sizes.items() if n not in parameters}
    if remat == "block":
        assert sum(activations.values()) <= L * B * T * D // 8
        assert activations
    else:
        assert sum(activations.values()) > L * B * T * D // 8
    # Whole kernels of one device: D x (H K + 2 K + 2 F), H K x D and F x D, of which it has half of H and F.
    assert not {",64,176", ",32,64", ",64,64"} & sizes.keys()


# --- what can't be


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ((3, 1), "d_model 32 is not divisible by 3"),
        ((1, 16), "n_heads 8 is not divisible by 16"),
        ((0, 1), "the mesh is 0 x 1"),
    ],
)
def test_a_mesh_that_does_not_divide_names_the_dimension(mesh, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        Layout(*mesh).check(ODD)


def test_more_devices_than_there_are_is_said():
    with pytest.raises(ConfigError, match=r"a mesh of 16 x 2 .* needs 32 devices and there are 8"):
        Layout(16, 2).mesh()
    with pytest.raises(ConfigError, match="batch is 6 sequences, which the mesh's data axis of 4 does not divide"):
        Layout(4, 2).check_batch("batch", 6)
