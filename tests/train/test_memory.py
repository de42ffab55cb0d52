"""The estimate of a step's temporaries, beside what the compiler plans in float32."""

import jax
import pytest

from areca.config import OptimizerConfig
from areca.model.config import PRESETS, ModelConfig
from areca.model.layout import Layout
from areca.train import step
from areca.train.ahead.dryrun import UNRUN
from areca.train.ahead.memory import estimate
from areca.train.ahead.transfers import kept_bytes

PALM = OptimizerConfig()
FACTOR = 1.6  # either way; for shapes as large as PaLM's it is 1.05

# What is large: kernels, T x T and activations, the vocabulary, the depth. Sequences and context beside them.
SHAPES = {
    "wide": (ModelConfig(304, 512, 12, 8), 8, 32),
    "long": (ModelConfig(304, 128, 12, 8), 8, 512),
    "vocabulary": (ModelConfig(8000, 64, 12, 8), 16, 64),
    "deep": (ModelConfig(304, 64, 48, 8), 16, 64),
}


def _both(model, layout, batch, context, optimizer=PALM):
    """(estimate, compiled) of a step's temporaries in bytes, nothing double buffered (no CPU does)."""
    model = model.resolved()
    mesh = layout.mesh()
    state = step.abstract_state(model, optimizer, layout, mesh)
    traced = step.trace_step(model, optimizer, state, batch, context, layout, mesh)
    kept = kept_bytes(traced.jaxpr, model.n_layers)
    assert kept is not None
    if layout.remat == "block":
        size = {"float32": 4, "bfloat16": 2}[layout.dtype]
        assert kept == model.n_layers * batch * context * model.d_model * size // layout.devices
    compiled = traced.lower().compile(compiler_options=UNRUN).memory_analysis().temp_size_in_bytes
    return estimate(model, layout, state.params, batch, context, kept, 1, optimizer.name == "muon"), compiled


MORE = pytest.mark.exhaustive
CASES = [pytest.param(s, "block", cut, marks=m) for s in SHAPES for cut, m in (((8, 1), MORE), ((2, 4), []))]
CASES += [
    pytest.param(s, remat, (4, 2), marks=m)
    for s, m in (("long", []), ("deep", MORE))
    for remat in ("selective", "none")
]


@pytest.mark.parametrize(("shape", "remat", "sizes"), CASES)
def test_the_estimate_is_near_what_is_compiled_in_float32(shape, remat, sizes):
    found, compiled = _both(SHAPES[shape][0], Layout(*sizes, remat, "float32"), *SHAPES[shape][1:])
    assert compiled / FACTOR < found.bytes < FACTOR * compiled


@pytest.mark.parametrize("sizes", [(8, 1), (2, 4)])
def test_the_estimate_has_what_muons_update_needs(sizes):
    muon = OptimizerConfig("muon", beta2=0.95)
    found, compiled = _both(SHAPES["wide"][0], Layout(*sizes, "block", "float32"), *SHAPES["wide"][1:], muon)
    assert found.peak == "update"
    assert compiled / FACTOR < found.bytes < FACTOR * compiled


@pytest.mark.parametrize("sizes", [(8, 1), (1, 8)])
def test_the_estimate_of_a_large_model_is_within_a_twentieth(sizes):
    found, compiled = _both(PRESETS["palm-8b"], Layout(*sizes, "block", "float32"), 8, 2048)
    assert found.bytes == pytest.approx(compiled, rel=0.05)


def test_bfloat16_is_estimated_below_what_a_cpu_widens():
    found, compiled = _both(SHAPES["deep"][0], Layout(4, 2, "block", "bfloat16"), *SHAPES["deep"][1:])
    wide, _ = _both(SHAPES["deep"][0], Layout(4, 2, "block", "float32"), *SHAPES["deep"][1:])
    assert found.bytes < compiled
    assert wide.bytes / 2 < found.bytes < 0.75 * wide.bytes  # gradients stay float32


def test_kernels_that_arrive_ahead_are_counted_once_more():
    model, batch, context = SHAPES["wide"]
    model, layout = model.resolved(), Layout(8, 1, "block", "float32")
    params = jax.eval_shape(lambda: step.init_state(model, OptimizerConfig(), 0).params)
    one, two = (estimate(model, layout, params, batch, context, 0, n) for n in (1, 2))
    D, H, K, F = 512, 8, 64, 2048
    layer = 4 * (2 * D * H * K + 2 * D * K + 3 * D * F + D)
    assert two.moments["backward"]["kernels of a layer"] - one.moments["backward"]["kernels of a layer"] == layer
