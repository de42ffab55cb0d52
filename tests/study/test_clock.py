"""Times of stages over sessions: interrupted ones and killed ones count too, and what is not known is said."""

import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from areca.study import clock as module
from areca.study.clock import StageClock

SESSION = """
import sys, time
from pathlib import Path
from areca.files import read_json
from areca.study import clock
clock.BEAT_SECONDS = 0.05
path = Path(sys.argv[1])
record = read_json(path) if path.exists() else {"stages": []}
with clock.StageClock(path, record)("ladder"):
    print("in", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def _stages(path):
    return json.loads(path.read_text())["stages"]


def _work_and_stop(clock):
    with clock("law"):
        time.sleep(0.1)
        raise KeyboardInterrupt


def test_a_session_that_ends_by_an_exception_counts(tmp_path):
    path = tmp_path / "record.json"
    for _ in range(2):
        clock = StageClock(path, json.loads(path.read_text()) if path.exists() else {"stages": []})
        with pytest.raises(KeyboardInterrupt):
            _work_and_stop(clock)
    (stage,) = _stages(path)
    assert stage["name"] == "law"
    assert 0.2 <= stage["seconds"] < 10
    assert set(stage) == {"name", "seconds"}  # nothing of it is unknown


def test_killed_sessions_count_up_to_their_last_beat_and_are_marked(tmp_path):
    path = tmp_path / "record.json"
    lived = 0.0
    for session in range(3):
        process = subprocess.Popen([sys.executable, "-c", SESSION, str(path), "60"], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "in\n"
        started = time.monotonic()
        while _stages(path)[0]["seconds"] < 0.35 * (session + 1) and time.monotonic() < started + 60:
            time.sleep(0.05)  # until a beat has written it, however busy the machine is
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        lived += time.monotonic() - started
        (stage,) = _stages(path)
        assert stage["running"] is True
        assert 0.35 * (session + 1) <= stage["seconds"] < lived + 0.1
    subprocess.run([sys.executable, "-c", SESSION, str(path), "0.2"], check=True, capture_output=True)
    (stage,) = _stages(path)
    assert stage["seconds"] > 1.2  # the sessions that were killed are in it
    assert stage["at_least"] is True
    assert "running" not in stage


def test_stages_are_kept_apart_and_in_the_order_they_were_met(tmp_path, monkeypatch):
    times = iter([0.0, 0.0, 1.0, 5.0, 5.0, 7.0, 7.0, 7.0, 10.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=times.__next__))
    monkeypatch.setattr(module, "BEAT_SECONDS", 1e6)
    path = tmp_path / "record.json"
    clock = StageClock(path, {"stages": []})
    for name in ("law", "plan", "law"):
        with clock(name):
            pass
    assert _stages(path) == [{"name": "law", "seconds": 4.0}, {"name": "plan", "seconds": 2.0}]
