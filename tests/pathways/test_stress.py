"""Some seconds of benchmarks/stress.py, and its watchdog."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def storms():
    spec = importlib.util.spec_from_file_location("areca_storms", BENCHMARKS / "storms.py")
    module = sys.modules["areca_storms"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_gives_what_numpy_gives(storms, seed):
    """No value is wrong, an error reaches all that depend on it and nothing else, and nothing hangs."""
    assert storms.Storm(seed, deadline=60).run() == []


def test_a_storm_is_a_function_of_its_seed(storms):
    first, again = storms.Storm(5), storms.Storm(5)
    first.run()
    again.run()
    assert {k: first.counts[k] for k in ("graphs", "values", "taken", "closed")} == {
        k: again.counts[k] for k in ("graphs", "values", "taken", "closed")
    }


def test_a_hang_is_told_with_its_seed_and_all_stacks():
    body = (
        "import sys, threading; sys.argv = ['stress']; import stress\n"
        "def waits_for_ever(): threading.Event().wait()\n"
        "threading.Thread(target=waits_for_ever, daemon=True).start()\n"
        "stress.watched(4711, 0.5, waits_for_ever)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", body], capture_output=True, text=True, timeout=60, cwd=BENCHMARKS, check=False
    )
    assert done.returncode == 1
    assert "seed 4711: a storm that has not ended after 0.5 s hangs" in done.stderr
    assert done.stderr.count("in waits_for_ever") == 2  # of both threads
