"""Who shares a program: what `--together` makes of a family on a CPU and on an accelerator, and what is said of it."""

import os
import subprocess
import sys

import pytest

from areca.errors import ConfigError
from areca.study.ladder import plan_ladder, run_ladder
from areca.study.programs import MOST, arrange, groups


@pytest.fixture
def jobs(tiny_store, tmp_path):
    """Two sizes with three seeds and two rates each."""
    return plan_ladder(tmp_path, tiny_store, [2e8], sizes=2, context=16, seeds=3, learning_rates=(0.5, 1.0)).jobs


def test_runs_that_differ_in_seed_and_rate_share_a_program(jobs):
    assert [len(g) for g in groups(jobs)] == [6, 6]
    assert {j.config.model.d_model for j in groups(jobs)[0]} == {jobs[0].config.model.d_model}
    # Grouping follows from the family, in any order of it.
    assert {frozenset(j.name for j in g) for g in groups(jobs[::-1])} == {
        frozenset(j.name for j in g) for g in groups(jobs)
    }


def test_a_large_group_is_cut_into_equal_parts(tiny_store, tmp_path):
    jobs = plan_ladder(tmp_path, tiny_store, [2e8], sizes=1, context=16, seeds=MOST + 5).jobs
    assert [len(g) for g in groups(jobs)] == [10, 11]


@pytest.mark.parametrize(
    ("together", "backend", "programs", "workers", "words"),
    [
        ("auto", "cpu", 12, 0, "as processes, one on each core (auto: on a CPU one program"),
        ("processes", "cpu", 12, 0, "as processes, one on each core."),
        ("vmap", "cpu", 2, 0, "12 runs in 2 programs of up to 6: a run that shares its program agrees with"),
        ("one", "cpu", 12, 1, "one after another"),
        ("auto", "gpu", 2, 1, "in 2 programs of up to 6 (auto: this machine computes on a gpu)"),
        ("vmap", "gpu", 2, 1, "to rounding, not to the bit"),
        ("one", "tpu", 12, 1, "one after another"),
    ],
)
def test_what_goes_at_a_time_is_chosen_and_said(jobs, together, backend, programs, workers, words):
    made = arrange(jobs, together, 0, backend)
    assert (len(made.programs), made.workers) == (programs, workers)
    assert words in made.says
    assert sorted(j.name for p in made.programs for j in p) == sorted(j.name for j in jobs)


def test_what_can_not_be_is_refused(jobs):
    with pytest.raises(ConfigError, match="each process takes most of the memory"):
        arrange(jobs, "processes", 0, "gpu")
    assert arrange(jobs, "processes", 2, "gpu").workers == 2
    with pytest.raises(ConfigError, match="workers is 3, but together is 'one'"):
        arrange(jobs, "one", 3, "cpu")
    with pytest.raises(ConfigError, match="workers is -1"):
        arrange(jobs, "auto", -1, "cpu")


def test_where_no_two_runs_are_alike_vmap_says_so(tiny_store, tmp_path):
    jobs = plan_ladder(tmp_path, tiny_store, [2e8], sizes=2, context=16).jobs
    assert "no two are alike" in arrange(jobs, "vmap", 0, "cpu").says


def test_the_backend_is_asked_without_starting_jax_here():
    ask = "import sys; from areca import runtime; print(runtime.backend(), 'jax' in sys.modules)"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    asked = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True)
    assert asked.stdout.split() == ["cpu", "False"]


@pytest.mark.slow
@pytest.mark.parametrize("together", [pytest.param("processes", marks=pytest.mark.exhaustive), "vmap"])
def test_a_rate_that_diverges_is_an_outcome_of_a_sweep(tiny_store, tmp_path, together):
    from areca.laws import load
    from areca.report.gather import gather

    ladder = plan_ladder(tmp_path, tiny_store, [2e8], sizes=1, context=16, learning_rates=(1.0, 1e6))
    said: list[str] = []
    options = {"workers": 1, "together": together, "on_progress": lambda *_: None, "on_result": lambda *_: None}
    results = run_ladder(ladder, say=said.append, **options)
    assert [r["labels"]["learning_rate_factor"] for r in results] == [1.0]
    assert ("together" in results[0]) == (together == "vmap")
    lost = [s for s in said if s.startswith(f"{ladder.jobs[1].name}: at step")]
    assert len(lost) == 1
    lines = (ladder.jobs[1].run_dir / "metrics.jsonl").read_text()
    assert run_ladder(ladder, **options) == results  # neither is trained again
    assert (ladder.jobs[1].run_dir / "metrics.jsonl").read_text() == lines
    assert any("has no result yet" in note for note in load([tmp_path]).notes)
    found = gather([tmp_path])
    assert [run.result is not None for run in found.runs] == [True, False]
