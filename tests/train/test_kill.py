"""A run killed or stopped at any point and resumed ends with the bits of a run that never was (contract 1)."""

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from areca.train.checkpoint import Checkpoints
from areca.train.record import read_metrics

KILL = Path(__file__).resolve().parents[2] / "benchmarks" / "kill.py"
STEPS, EVERY = 200, 20


def _load(path: Path):
    spec = importlib.util.spec_from_file_location("areca_kill", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kill = _load(KILL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kill")


@pytest.fixture(scope="module")
def config(directory) -> Path:
    return kill.prepare(directory, steps=STEPS, every=EVERY, width=16, layers=1)


@pytest.fixture(scope="module")
def uninterrupted(directory, config) -> dict[str, str]:
    kill.areca(["train", str(config), "--out", str(directory / "whole")], directory)
    return kill.outcome(directory / "whole")


def _stop(number: signal.Signals, arguments: list[str], run: Path, directory: Path) -> None:
    """Sends a signal once the run has taken a few steps of its own; checks that it stopped cleanly."""
    before = len(read_metrics(run))
    command = [sys.executable, "-W", "error", "-m", "areca", *arguments]
    process = subprocess.Popen(command, env=kill.environment(directory), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 300
        while process.poll() is None and len(read_metrics(run)) < before + 8 and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    last = read_metrics(run)[-1]["step"]
    assert process.returncode == 130, stderr
    assert f"stopped by {number.name} at step {last} of " in stderr.splitlines()[-1]
    assert "Traceback" not in stderr
    with Checkpoints(run / "checkpoints", writable=False) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        assert latest.step == last < STEPS
        checkpoints.verify(latest)
    assert json.loads((run / "events.jsonl").read_text().splitlines()[-1])["event"] == "interrupt"


@pytest.mark.slow
def test_a_run_killed_in_each_phase_and_stopped_by_signals_ends_with_the_same_bits(directory, config, uninterrupted):
    run = directory / "killed"
    start = ["train", str(config), "--out", str(run)]
    resume = [*start, "--resume"]
    # (phase, nth time within that process): the run advances past a checkpoint or two between kills.
    for phase, nth in (("compile", 1), ("save", 2), ("commit", 2), ("append", 30)):
        hit = kill.killed(phase, nth, start if phase == "compile" else resume, directory)
        assert hit is not None, f"the run finished before the {phase} it was to be killed in"
        assert phase in kill.hits(hit)
    assert not (run / "metrics.jsonl").read_bytes().endswith(b"\n")  # the last kill was within a line
    _stop(signal.SIGTERM, resume, run, directory)
    _stop(signal.SIGINT, resume, run, directory)
    kill.areca(resume, directory)
    assert kill.outcome(run) == uninterrupted
    assert [row["step"] for row in read_metrics(run)] == list(range(1, len(read_metrics(directory / "whole")) + 1))
    with Checkpoints(run / "checkpoints", writable=False) as checkpoints:
        steps = [str(e.step) for e in checkpoints.entries()]
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == sorted([*steps, "record.json"])


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused_and_an_older_one_leads_to_the_same_bits(directory, config, uninterrupted):
    run = directory / "damaged"
    shutil.copytree(directory / "whole", run)
    (run / "result.json").unlink()
    arguments = ["train", str(config), "--out", str(run)]
    with Checkpoints(run / "checkpoints", writable=False) as checkpoints:
        older, latest = (entry.step for entry in checkpoints.entries())
    data = max((run / "checkpoints" / str(latest)).rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    metrics = (run / "metrics.jsonl").read_bytes()

    refused = kill.areca([*arguments, "--resume"], directory, check=False)
    assert refused.returncode == 2
    assert data.name in refused.stderr
    assert f"--from-step {older}" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
    assert (run / "metrics.jsonl").read_bytes() == metrics

    kill.areca([*arguments, "--resume", "--from-step", str(older)], directory)
    assert kill.outcome(run) == uninterrupted
