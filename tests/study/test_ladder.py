"""The ladder: budgets met in exact FLOPs, sizes around the optimum, seeds apart, resumed without repeating."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from areca.errors import ConfigError, DataError
from areca.files import read_json, write_json
from areca.model.counts import count_params, exact_flops_per_token
from areca.pathways.elsewhere.processes import without_devices
from areca.study import recipe
from areca.study.ladder import plan_ladder, run_ladder, shapes_around
from areca.study.ladderjson import describe
from areca.study.quickstart import SIZES, STRETCH, Settings


@pytest.fixture
def store(tiny_store):
    return tiny_store


def test_every_run_spends_its_budget_in_exact_flops(store, tmp_path):
    ladder = plan_ladder(tmp_path, store, [2e8, 5e8], sizes=3, context=16)
    for job in ladder.jobs:
        step = exact_flops_per_token(job.config.model, 16) * job.config.batch.ramp[0][1] * 16
        assert abs(job.cost - job.labels["budget_flops"]) <= step / 2
        assert job.config.schedule.name == "cosine"
        assert job.config.schedule.warmup_tokens == pytest.approx(0.1 * job.config.tokens, abs=1)


def test_no_two_runs_share_a_seed_or_a_name(store, tmp_path):
    jobs = plan_ladder(tmp_path, store, [2e8, 5e8], sizes=3, context=16, seed=7).jobs
    assert len({j.config.seed for j in jobs}) == len({j.name for j in jobs}) == len(jobs) == 6


def test_sizes_rise_and_lie_on_both_sides_of_the_expected_optimum():
    for budget in (1e11, 1e12, 1e13):
        sizes = [count_params(m).non_embedding for m in shapes_around(1024, budget, 5)]
        assert sizes == sorted(set(sizes))
        assert sizes[1] < sizes[2] < sizes[3]


def test_minutes_pick_budgets_by_arithmetic_and_rise_together():
    small, large = Settings(minutes=5).budgets(), Settings(minutes=10).budgets()
    assert Settings(minutes=10).budgets() == large
    assert all(a < b for a, b in zip(small, large, strict=True))
    total = SIZES * sum(large) + STRETCH * large[-1]
    assert total / (SIZES * sum(small) + STRETCH * small[-1]) == pytest.approx(8.5 / 3.5, rel=0.05)
    with pytest.raises(ConfigError, match=r"minutes is 0\.5"):
        Settings(minutes=0.5).budgets()


def _compiled(cache):
    """Names of the programs in the cache; it also has a file for when each was last used."""
    return {p.name for p in cache.rglob("*") if p.is_file() and not p.name.endswith("-atime")}


@pytest.fixture(scope="module")
def first(tiny_store, tmp_path_factory):
    """(ladder of one run, its results, the cache it was compiled into, the programs there); a cache of its own."""
    root = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARECA_CACHE", str(root / "cache"))
        patch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        ladder = plan_ladder(root / "ladder", tiny_store, [2e7], sizes=1, context=16, epochs=1e6, seed=5)
        results, _ = _run(ladder, workers=1)
    return ladder, results, root / "cache", _compiled(root / "cache")


def test_the_same_shapes_are_compiled_once_for_all_ladders(first, store, tmp_path, monkeypatch):
    _, _, cache, before = first
    monkeypatch.setenv("ARECA_CACHE", str(cache))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    _run(plan_ladder(tmp_path / "second", store, [2e7], sizes=1, context=16, epochs=1e6, seed=6), workers=1)
    assert len(before) >= 3  # the first state, the step, the evaluation
    assert _compiled(cache) == before


def test_a_ladder_from_before_a_setting_was_there_goes_on(first, store, tmp_path):
    ladder, results, _, _ = first
    shutil.copytree(ladder.directory, tmp_path / "ladder")
    ladder = plan_ladder(tmp_path / "ladder", store, [2e7], sizes=1, context=16, epochs=1e6, seed=5)
    path = ladder.directory / "ladder.json"
    record = read_json(path)
    for run in record["runs"]:
        del run["config"]["model"]["block"], run["config"]["model"]["base_width"]
        run["config"]["checkpoint"]["every_steps"] = 7
    write_json(path, record)
    assert _run(ladder, workers=1)[0] == results
    record["runs"][0]["config"]["seed"] = 4711
    write_json(path, record)
    with pytest.raises(ConfigError, match="seed: 4711 -> 5"):
        _run(ladder, workers=1)


def test_a_ladder_larger_than_the_text_is_refused_with_the_run_that_is(store, tmp_path):
    with pytest.raises(DataError, match="times over"):
        plan_ladder(tmp_path, store, [1e15], sizes=2, context=16)
    with pytest.raises(ConfigError, match="positive"):
        plan_ladder(tmp_path, store, [-1.0])
    with pytest.raises(ConfigError, match="twice"):
        plan_ladder(tmp_path, store, [1e9, 1e9])


def test_learning_rate_falls_with_the_steps_of_a_run():
    assert recipe.learning_rate(100) == 0.07
    assert recipe.learning_rate(1300) == pytest.approx(0.056)
    assert recipe.learning_rate(5000) < recipe.learning_rate(2000)


def _family(store, directory, context=16):
    shapes = [recipe.shape(300, 16), recipe.shape(300, 24)]
    return plan_ladder(directory, store, [1.5e8, 3e8], shapes=shapes, context=context, seed=3)


def _run(ladder, workers):
    made = []
    results = run_ladder(
        ladder, workers=workers, on_progress=lambda *_: None, on_result=lambda name, _: made.append(name)
    )
    return results, made


def test_every_size_budget_seed_and_rate_is_a_run_with_a_name_that_says_so(store, tmp_path):
    plain = plan_ladder(tmp_path, store, [2e8, 5e8], sizes=2, context=16, seed=7).jobs
    jobs = plan_ladder(
        tmp_path, store, [2e8, 5e8], sizes=2, context=16, seed=7, seeds=3, learning_rates=[1, 0.5, 2]
    ).jobs
    assert len(jobs) == len({j.name for j in jobs}) == 2 * 2 * 3 * 3
    assert [j.name.removeprefix(plain[0].name) for j in jobs[:4]] == ["-s0-lr0.5", "-s0-lr1", "-s0-lr2", "-s1-lr0.5"]
    assert all(j.run_dir.name == j.name == j.labels["name"] for j in jobs)
    # Rates are compared under one seed, seeds differ between all else, and the plain ladder is among the runs.
    seeds = {}
    for j in jobs:
        assert j.config.seed == j.config.data.seed
        seeds.setdefault(j.name.rpartition("-lr")[0], set()).add(j.config.seed)
    assert all(len(s) == 1 for s in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds) == 12
    found = {j.config.fingerprint(): j for j in jobs}
    assert [found[j.config.fingerprint()].name for j in plain] == [f"{j.name}-s0-lr1" for j in plain]
    rates = [j.config.optimizer.learning_rate / plain[0].config.optimizer.learning_rate for j in jobs[:3]]
    assert rates == pytest.approx([0.5, 1, 2])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seeds": 0}, "seeds is 0; give 1 to 500"),
        ({"seeds": 501}, "seeds is 501"),
        ({"learning_rates": [0.0]}, "learning rates are"),
        ({"learning_rates": [1.0, float("nan")]}, "learning rates are"),
        ({"learning_rates": []}, "learning rates are"),
        ({"learning_rates": [1.0, 2.0, 1.0]}, "given twice"),
    ],
)
def test_sweeps_that_cannot_be(store, tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        plan_ladder(tmp_path, store, [2e8], sizes=2, context=16, **options)


def test_a_directory_of_something_else_is_left_alone(store, tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(ConfigError, match="is not empty and holds no ladder; choose another --out"):
        _run(plan_ladder(tmp_path, store, [2e8], sizes=2, context=16), workers=1)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "thesis.tex").rename(tmp_path / "ladder.json")
    (tmp_path / "ladder.json").write_text('{"steps": 3}')
    with pytest.raises(DataError, match="is not a ladder of this version"):
        _run(plan_ladder(tmp_path, store, [2e8], sizes=2, context=16), workers=1)


def test_another_ladder_is_told_by_its_settings(store, tmp_path):
    options = {"sizes": 2, "context": 16, "seeds": 2}
    ladder = plan_ladder(tmp_path, store, [2e8, 4e8], **options)
    write_json(tmp_path / "ladder.json", describe(ladder))

    def refusal(budgets=(2e8, 4e8), edit=lambda record: record, **changes):
        write_json(tmp_path / "ladder.json", edit(describe(ladder)))
        with pytest.raises(ConfigError) as caught:
            _run(plan_ladder(tmp_path, store, budgets, **(options | changes)), workers=1)
        return str(caught.value).partition("another ladder ")[2]

    end = "; choose another --out or the same settings."
    assert refusal(seeds=3, learning_rates=(0.5, 1)) == f"(seeds: 2 -> 3; learning_rates: 1 -> 0.5 1){end}"
    assert refusal([2e8]) == f"(budgets: 2e+08 4e+08 -> 2e+08){end}"

    def older(record):  # made by another recipe, before settings were written
        del record["settings"]
        for run in record["runs"]:
            run["config"]["optimizer"]["momentum"] = 0.8
        return record

    first = ladder.jobs[0].name
    assert refusal(edit=older) == f"(optimizer.momentum: 0.8 -> 0.9 in {first} and 7 more runs){end}"


@pytest.mark.slow
def test_runs_beside_others_have_the_bits_of_runs_alone_and_are_not_made_twice(store, tmp_path):
    two, _ = _run(_family(store, tmp_path / "two"), workers=2)
    one, _ = _run(_family(store, tmp_path / "one"), workers=1)
    assert [r["parameters_sha256"] for r in two] == [r["parameters_sha256"] for r in one]
    times = {p: p.stat().st_mtime_ns for p in (tmp_path / "two").rglob("result.json")}
    again, _ = _run(_family(store, tmp_path / "two"), workers=2)
    assert again == two
    assert times == {p: p.stat().st_mtime_ns for p in (tmp_path / "two").rglob("result.json")}
    other = _family(store, tmp_path / "two", context=24)
    with pytest.raises(ConfigError, match=r"another ladder \(context: 16 -> 24\); choose another --out"):
        _run(other, workers=1)
    assert read_json(tmp_path / "two" / "ladder.json") == json.loads(
        json.dumps(describe(_family(store, tmp_path / "two")))
    )


@pytest.mark.slow
@pytest.mark.parametrize("together", ["processes", pytest.param("vmap", marks=pytest.mark.exhaustive)])
def test_a_ladder_killed_with_its_parent_goes_on_with_the_same_bits(store, tmp_path, together):
    options = ["--budgets", "4e8", "8e8", "--sizes", "2"]
    if together == "vmap":
        options = ["--budgets", "8e8", "--sizes", "1", "--seeds", "2", "--learning-rates", "0.5,1"]
        options += ["--together", "vmap"]
    command = [
        sys.executable, "-m", "areca", "ladder", str(store), "--out", str(tmp_path / "killed"),
        *options, "--context", "16", "--json",
    ]  # fmt: skip
    environment = os.environ | {"XLA_FLAGS": without_devices(os.environ["XLA_FLAGS"])}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "killed").rglob("metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    whole = subprocess.run(
        [str(tmp_path / "whole") if c == str(tmp_path / "killed") else c for c in command],
        capture_output=True, text=True, env=environment, timeout=120, check=True,
    )  # fmt: skip
    digests = [[r["parameters_sha256"] for r in json.loads(d.stdout)] for d in (done, whole)]
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 4
    assert ("rounding" in done.stderr) == (together == "vmap")
