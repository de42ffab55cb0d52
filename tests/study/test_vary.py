"""Ladders that vary data, shape, context or batch: one thing differs, the rest is equal, and options are for theirs."""

import math

import pytest

from areca.config import ModelConfig
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError
from areca.files import read_json
from areca.laws import load
from areca.model.counts import count_params
from areca.study import recipe
from areca.study.equal_shapes import equal_shape
from areca.study.ladder import run_ladder
from areca.study.ladderjson import describe
from areca.study.programs import groups
from areca.study.vary import Settings, plan_family, plan_sweep
from areca.train.loop import train
from areca.train.record import read_evaluations
from tiny import tiny_config


def _plan(vary, store, out, **settings):
    sweep = {k: settings.pop(k) for k in ("seed", "seeds", "learning_rates") if k in settings}
    return plan_sweep(vary, out, store, Settings(context=16, **settings), **sweep)


def _differ(jobs, *fields):
    """The values of settings over jobs, each as a set."""
    found = []
    for name in fields:
        values = set()
        for j in jobs:
            value = j.config
            for part in name.split("."):
                value = getattr(value, part)
            values.add(value)
        found.append(values)
    return found


def test_data_varies_the_part_of_the_text_and_the_passes_alone(tiny_store, tmp_path):
    jobs = _plan("data", tiny_store, tmp_path, widths=(16,), fractions=(0.1, 0.5, 1.0), epochs=(1, 2, 10)).jobs
    whole = sum(c.train_tokens - c.train_tokens % 16 for c in TokenStore.open(tiny_store).corpora)
    assert len({j.name for j in jobs}) == len(jobs)
    for j in jobs:
        c = j.config
        assert j.labels["vary"] == "data"
        assert c.tokens <= whole + 16 * 32  # the longest is one pass over all, to a step
        assert c.tokens == pytest.approx(j.labels["passes"] * c.data.fraction * whole, rel=0.05)
    assert [len([j for j in jobs if j.config.data.fraction == f]) for f in (0.1, 0.5, 1.0)] == [3, 2, 1]
    batches, models, seeds, data = _differ(jobs, "batch.ramp", "model", "seed", "data.seed")
    assert len(batches) == len(models) == len(seeds) == len(data) == 1


def test_depths_and_heads_have_equal_parameters(tiny_store, tmp_path):
    jobs = _plan("shape", tiny_store, tmp_path, widths=(48,), tokens=3000, heads=(1, 2, 6)).jobs
    wanted = count_params(recipe.shape(300, 48)).non_embedding
    for j in jobs:
        m = j.config.model
        assert count_params(m).non_embedding == pytest.approx(wanted, rel=0.01)
        assert m.d_model % m.n_heads == 0
        assert (m.d_model // m.n_heads) % 2 == 0
        assert 2 < m.d_ff / m.d_model < 8
    assert [j.config.model.n_layers for j in jobs] == [1, 2, 3, 4, 6, 8, 12, 3, 3, 3]
    widths = [j.config.model.d_model for j in jobs[:7]]
    assert widths == sorted(widths, reverse=True)
    assert [j.config.model.n_heads for j in jobs[7:]] == [1, 2, 6]
    assert len(_differ(jobs, "batch.ramp")[0]) == len(_differ(jobs, "tokens")[0]) == 1


def test_a_depth_that_no_decoder_of_that_size_has():
    with pytest.raises(ConfigError, match="no decoder of 400 layers has the"):
        equal_shape(ModelConfig(300, 16, 3, 1).resolved(), 400)


def test_contexts_take_equal_steps_of_equal_tokens(tiny_store, tmp_path):
    jobs = plan_sweep("context", tmp_path, tiny_store, Settings(contexts=(8, 16, 24, 48), tokens=9000)).jobs
    assert len(_differ(jobs, "tokens")[0]) == len(_differ(jobs, "optimizer.learning_rate")[0]) == 1
    assert len({j.config.batch.ramp[0][1] * j.config.data.context for j in jobs}) == 1
    assert {j.config.evaluation.max_tokens for j in jobs} == {0}  # all held-out text, whatever the window
    assert [j.labels["context"] for j in jobs] == [8, 16, 24, 48]


def test_batches_get_rates_by_their_root_and_tokens_by_the_tradeoff(tiny_store, tmp_path):
    jobs = _plan("batch", tiny_store, tmp_path, widths=(16,), tokens=2000, batches=(2, 8, 32)).jobs
    rate = [j.config.optimizer.learning_rate for j in jobs]
    assert rate[1] / rate[0] == pytest.approx(2, rel=0.01)
    assert rate[2] / rate[1] == pytest.approx(2, rel=0.01)
    # The middle batch, where S is twice S_min, takes twice the least tokens.
    assert jobs[1].config.tokens == pytest.approx(2 * 2000, rel=0.05)
    assert jobs[2].config.tokens == pytest.approx(5 * 2000, rel=0.1)
    assert {j.config.schedule.name for j in jobs} == {"constant"}
    assert [j.config.noise_parts for j in jobs] == [2, 2, 8]


def test_seeds_and_rates_are_of_all_points(tiny_store, tmp_path):
    jobs = _plan("data", tiny_store, tmp_path, widths=(16, 24), fractions=(0.5, 1), epochs=(1,), seeds=2, seed=3,
                 learning_rates=(0.5, 1)).jobs  # fmt: skip
    assert len(jobs) == len({j.name for j in jobs}) == 2 * 2 * 2 * 2
    assert {(j.config.seed, j.labels["seed"]) for j in jobs} == {(3000, 0), (3001, 1)}
    assert jobs[0].name.endswith("-s0-lr0.5")


@pytest.mark.parametrize(
    ("vary", "options", "words"),
    [
        (
            "data",
            {"budgets": (1e9,)},
            "--budgets is for ladders that vary size, and this one varies data; leave it out",
        ),
        ("size", {"fractions": (0.1,)}, "--fractions is for ladders that vary data, and this one varies size"),
        ("context", {"context": 64}, "--context is for ladders that vary size or data or shape or batch"),
        ("shape", {"epochs": (1, 2)}, "--epochs is .* several are for ladders that vary data"),
        ("size", {"epochs": (1, 2), "budgets": (1e9,)}, "several are for ladders that vary data"),
        ("data", {"fractions": (0.1, 1.5)}, "parts of the text, at most 1"),
        ("data", {"fractions": (0.1, 0.1)}, "give different numbers above 0"),
        ("shape", {"widths": (15,)}, "give even widths"),
        ("shape", {"widths": (16,), "heads": (3,)}, "--heads has 3, which does not divide the width 16"),
        ("batch", {"tokens": -1}, "--tokens is -1"),
        ("batch", {"context": 0}, "context is 0"),
        ("batch", {"evaluations": -2}, "evaluations -2"),
        ("size", {}, "give positive numbers of FLOPs"),
    ],
)
def test_options_that_do_not_apply_or_cannot_be(tiny_store, tmp_path, vary, options, words):
    with pytest.raises(ConfigError, match=words):
        plan_family(vary, tmp_path, tiny_store, options, seed=0, seeds=1, learning_rates=(1.0,))


def test_text_that_would_be_read_again_is_refused_unless_it_may_be(tiny_store, tmp_path):
    with pytest.raises(DataError, match="times over"):
        _plan("shape", tiny_store, tmp_path, tokens=100_000)
    assert _plan("shape", tiny_store, tmp_path, tokens=100_000, epochs=(20,)).most_passes > 1
    with pytest.raises(ConfigError, match="1000 runs at most"):
        _plan("shape", tiny_store, tmp_path, tokens=3000, seeds=900)


@pytest.mark.slow
def test_a_sweep_is_a_ladder_that_goes_on_is_refused_with_others_and_is_read_by_fit(tiny_store, tmp_path):
    def sweep(**changes):
        settings = {
            "widths": (16,),
            "fractions": (0.05, 0.1),
            "epochs": (2,),
            "evaluations": 3,
            "tokens": 9000,
            **changes,
        }
        return _plan("data", tiny_store, tmp_path / "sweep", **settings)

    def run(ladder):
        made = []
        results = run_ladder(ladder, workers=1, on_progress=lambda *_: None, on_result=lambda n, _: made.append(n))
        return results, made

    results, _ = run(sweep())
    times = [p.stat().st_mtime_ns for p in sorted((tmp_path / "sweep").rglob("result.json"))]
    assert run(sweep())[0] == results
    assert times == [p.stat().st_mtime_ns for p in sorted((tmp_path / "sweep").rglob("result.json"))]
    with pytest.raises(ConfigError, match=r"another ladder \(fractions: 0.05 0.1 -> 0.05 0.2\)"):
        run(sweep(fractions=(0.05, 0.2)))
    assert read_json(tmp_path / "sweep" / "ladder.json") == describe(sweep())
    rows = load([tmp_path / "sweep"])
    assert sorted(rows.loss) == sorted(r["loss"] for r in results)
    for r, job in zip(results, sweep().jobs, strict=True):
        along = read_evaluations(job.run_dir)
        assert len(along) >= 3
        assert r["loss_best"] == min(e["loss"] for e in along)
        assert r["loss"] == along[-1]["loss"]
        assert r["unique_tokens"] == pytest.approx(r["n_tokens"] / r["epochs"])
        assert r["epochs"] == pytest.approx(2, rel=0.3)  # to a step of two sequences


def test_of_a_step_that_is_evaluated_again_the_last_counts(tiny_store, tmp_path):
    """As in a run that was killed after an evaluation past its checkpoint."""
    config = tiny_config(tiny_store)
    config = type(config)(**{**vars(config), "evaluation": type(config.evaluation)(every_tokens=256, max_tokens=512)})
    result = train(config, tmp_path / "run")
    along = read_evaluations(tmp_path / "run")
    assert [e["step"] for e in along] == [4, 8, 12]
    assert result["loss_best_step"] == 12
    assert math.isclose(result["loss_best"], result["loss"])
    with open(tmp_path / "run" / "events.jsonl", "a") as file:
        file.write('{"time": 1.0, "event": "evaluate", "step": 4, "tokens": 256, "loss": 0.5}\n')
    assert read_evaluations(tmp_path / "run")[0]["loss"] == 0.5


def test_rates_of_one_batch_can_share_a_program(tiny_store, tmp_path):
    jobs = _plan(
        "batch", tiny_store, tmp_path, widths=(16,), tokens=2000, batches=(2, 8), learning_rates=(0.5, 1, 2)
    ).jobs
    assert [[j.labels["batch_tokens"] for j in g] for g in groups(jobs)] == [[32] * 3, [128] * 3]
