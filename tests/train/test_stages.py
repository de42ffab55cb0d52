"""Which parts of a model each stage holds."""

import jax
import numpy as np
import pytest

from areca.config import ModelConfig, OptimizerConfig
from areca.errors import ConfigError
from areca.model.counts import count_params
from areca.train.pipeline.stages import groups, join, layers_of_stages, parts
from areca.train.step import init_state

GPT = {"block": "serial", "n_kv_heads": 2, "mlp": "gelu", "positions": "learned", "n_positions": 10, "tied": False,
       "biases": True}  # fmt: skip


def model(layers: int = 5, **changes) -> ModelConfig:
    return ModelConfig(**({"vocab_size": 31, "d_model": 8, "n_layers": layers, "n_heads": 2, "d_ff": 16} | changes))


def test_stages_have_consecutive_layers_and_the_slowest_has_the_least():
    assert layers_of_stages(model(8), 1, 4, 8) == [
        [(0, 1), (1, 2)],
        [(2, 3), (3, 4)],
        [(4, 5), (5, 6)],
        [(6, 7), (7, 8)],
    ]
    sizes = [len(s) for s in layers_of_stages(model(9), 1, 4, 8)]
    assert sizes == [3, 2, 2, 2] or sorted(sizes) == [2, 2, 2, 3]
    assert sizes[-1] == 2  # it has the logits too
    # Logits that cost as much as some layers: by 6 V D against 8 parameters of a layer and its attention.
    many = [len(s) for s in layers_of_stages(model(9, vocab_size=300), 1, 3, 8)]
    assert many[-1] < min(many[:-1])
    assert layers_of_stages(model(5), 2, 2, 8) == [[(0, 1), (1, 3)], [(3, 5)]]
    assert groups(model(5), 5) == [(0, 5)]


@pytest.mark.parametrize("changes", [{}, GPT])
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_parts_are_the_whole_and_no_more(changes, stages):
    m = model(**changes)
    for name in ("adafactor", "adam", "muon"):
        optimizer = OptimizerConfig(name=name, beta2=0.95)
        state = jax.jit(lambda o=optimizer: init_state(m, o, 0))()
        found = parts(m, layers_of_stages(m, 1, stages, 8))
        for tree in (state.params, state.optimizer):
            joined = join([part.of(tree) for part in found])
            assert jax.tree.structure(joined) == jax.tree.structure(tree)
            for a, b in zip(jax.tree.leaves(joined), jax.tree.leaves(tree), strict=True):
                np.testing.assert_array_equal(a, b)
    sizes = [sum(a.size for a in jax.tree.leaves(part.of(state.params))) for part in found]
    assert sum(sizes) == count_params(m).total
    ends = {part.name: part.stages for part in found if not part.end}
    last = stages - 1
    assert ends["top"] == (last,)
    assert ends["embedding"] == ((0, last) if m.tied and last else (0,))  # both ends need a shared one
    assert [part.stages for part in found if part.end] == sorted(part.stages for part in found if part.end)


@pytest.mark.parametrize(
    ("layers", "stages", "says"),
    [
        (1, 6, "pipeline.stages is 6 and the model has 5 layers; choose a number from 1 to 5"),
        (2, 4, "pipeline.stages is 4 and the model has 5 layers in programs of 2; choose a number from 1 to 3"),
        (6, 1, "pipeline.layers is 6 and the model has 5 layers; choose a number from 1 to 5"),
    ],
)
def test_what_cannot_be_cut(layers, stages, says):
    with pytest.raises(ConfigError, match=says):
        layers_of_stages(model(), layers, stages, 8)
