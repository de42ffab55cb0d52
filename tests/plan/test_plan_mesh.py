"""Shapes that a mesh divides, by the rules of the layout that will cut them."""

from dataclasses import replace
from itertools import pairwise

import pytest

from areca.errors import ConfigError
from areca.laws.published import published
from areca.model.config import ModelConfig
from areca.model.counts import count_params
from areca.model.layout import Layout
from areca.plan import family, interpolate, plan_run, run_config
from areca.plan.batch import PUBLISHED
from areca.plan.shapes import parse_mesh


@pytest.mark.parametrize("mesh", [(1, 1), (8, 1), (4, 2), (3, 5), (64, 8), (256, 12)])
def test_every_shape_of_a_mesh_can_be_cut_over_it(mesh):
    shapes = family(32_000, mesh=mesh)
    assert len(shapes) > 10
    for s in shapes:
        Layout(*mesh).check(s)
        assert s.n_heads % mesh[1] == 0
        assert s.d_ff % mesh[1] == 0
        if s.d_model >= 2048:
            assert s.d_model % 128 == 0
    sizes = [count_params(s).non_embedding for s in shapes]
    # Where widths are a few steps from zero the sizes are close enough to plan with.
    far = [n for n, s in zip(sizes, shapes, strict=True) if s.d_model >= 3 * shapes[0].d_model and n > 1e6]
    assert max(b / a for a, b in pairwise(far)) < 1.6


def test_a_family_takes_the_heads_of_the_model_it_is_like():
    like = ModelConfig(1000, 64, 2, 4, n_kv_heads=4)
    assert all(s.n_kv_heads == s.n_heads for s in family(1000, like=like, largest=1e8))
    grouped = family(1000, like=ModelConfig(1000, 64, 2, 4, n_kv_heads=2), largest=1e8)
    assert all(s.n_kv_heads in (1, 2) and s.n_heads % s.n_kv_heads == 0 for s in grouped)


def test_a_ladders_own_shapes_stay_where_the_mesh_divides_them():
    fits, not_ = ModelConfig(1000, 96, 2, 6).resolved(), ModelConfig(1000, 80, 2, 5).resolved()
    shapes = interpolate([fits, not_], 1000, (1, 2))
    assert fits in shapes
    assert not_ not in shapes


def test_a_configuration_for_a_mesh_has_batches_that_it_can_share():
    shapes = family(1000, mesh=(3, 2))
    plan = plan_run(published("chinchilla"), 1e18, shapes, context=64, critical=PUBLISHED, data=3)
    config, _ = run_config(replace(plan, mesh=[3, 2]), None, "store")
    layout = Layout(config.parallel.data, config.parallel.model, config.parallel.remat)
    layout.check(config.model)
    layout.check_batch("evaluation.batch", config.evaluation.batch)
    for _, sequences in config.batch.ramp:
        layout.check_batch("batch.ramp", sequences)


def test_a_mesh_that_no_shape_divides():
    with pytest.raises(ConfigError, match="divides over a mesh of 100000 x 8"):
        family(1000, mesh=(100_000, 8))
    for words in ("8", "0x2", "8x", "axb", "-1x2"):
        with pytest.raises(ConfigError, match="write it as DATAxMODEL"):
            parse_mesh(words)
    assert parse_mesh("256x12") == (256, 12)
