"""The record of a run: lines that survive a kill, cut back exactly, one writer at a time."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import CheckpointError
from areca.train import record
from areca.train.checkpoint import Checkpoints
from areca.train.record import RunRecord, metrics_without_timing, read_metrics, read_run_json, unstarted


def _line(step: int) -> dict:
    return {"step": step, "tokens": 128 * step, "loss": 1 / step, "tokens_per_second": 9.0, "mfu": None, "seconds": 0.5}


def _steps(run_dir) -> list[int]:
    return [row["step"] for row in read_metrics(run_dir)]


def _written(run_dir, last: int) -> None:
    with RunRecord(run_dir) as run:
        for step in range(1, last + 1):
            run.append_metrics(_line(step))


def test_a_line_is_on_disk_as_soon_as_it_is_appended(tmp_path):
    with RunRecord(tmp_path) as run:
        run.append_metrics(_line(1))
        run.append_event("save", step=1)
        assert read_metrics(tmp_path) == [_line(1)]
        event = json.loads((tmp_path / "events.jsonl").read_text())
    assert event == {"time": event["time"], "event": "save", "step": 1}
    assert abs(event["time"] - time.time()) < 60


def test_a_resumed_run_continues_the_file_byte_for_byte(tmp_path):
    _written(tmp_path / "whole", 10)
    _written(tmp_path / "killed", 7)
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as f:
        f.write('{"step": 8, "tok')
    with RunRecord(tmp_path / "killed") as run:
        assert run.truncate_metrics(5) == 2
        assert _steps(tmp_path / "killed") == [1, 2, 3, 4, 5]
        for step in range(6, 11):
            run.append_metrics(_line(step))
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(("after", "dropped"), [(0, 4), (1, 3), (4, 0)])
def test_metrics_are_cut_after_the_checkpoint(tmp_path, after, dropped):
    _written(tmp_path, 4)
    with RunRecord(tmp_path) as run:
        assert run.truncate_metrics(after) == dropped
        assert run.truncate_metrics(after) == 0
    assert _steps(tmp_path) == list(range(1, after + 1))


def test_metrics_that_end_before_the_checkpoint_are_refused_and_left_alone(tmp_path):
    _written(tmp_path, 4)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with (
        RunRecord(tmp_path) as run,
        pytest.raises(CheckpointError, match="ends at step 4, before the checkpoint of step 6"),
    ):
        run.truncate_metrics(6)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "garbage", [b'{"step": 5', b"\0" * 4096, b"\0" * 100 + b"\n", b"nonsense\n[]\n", b'{"step": "x"}\n']
)
def test_garbage_past_the_checkpoint_goes_with_the_cut(tmp_path, garbage):
    # A power cut can leave a block of zeros or half a line; a kill can't.
    _written(tmp_path, 4)
    with (tmp_path / "metrics.jsonl").open("ab") as f:
        f.write(garbage)
    with RunRecord(tmp_path) as run:
        run.truncate_metrics(4)
        run.append_metrics(_line(5))
    assert _steps(tmp_path) == [1, 2, 3, 4, 5]


def test_an_unfinished_last_event_does_not_spoil_the_next(tmp_path):
    with RunRecord(tmp_path) as run:
        run.append_event("start", step=0)
    with (tmp_path / "events.jsonl").open("a") as f:
        f.write('{"time": 17')
    with RunRecord(tmp_path) as run:
        run.append_event("resume", step=3)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "resume"]


def test_an_unfinished_line_longer_than_a_block_is_cut(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + b"x" * 200_000)
    (tmp_path / "events.jsonl").write_bytes(b"y" * 200_000)
    RunRecord(tmp_path).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
    assert (tmp_path / "events.jsonl").read_bytes() == b""


def test_values_come_back_to_the_bit_and_what_is_not_finite_as_null(tmp_path):
    third = np.float32(1) / np.float32(3)
    with RunRecord(tmp_path) as run:
        run.append_metrics({"step": jnp.int32(1), "loss": third, "z_loss": jnp.float32(0.1), "mfu": 0.1 + 0.2})
        run.append_metrics({"step": 2, "loss": float("nan"), "grad_norm": np.float32("inf"), "more": {"x": [-np.inf]}})
    first, second = read_metrics(tmp_path)
    assert first == {"step": 1, "loss": float(third), "z_loss": float(np.float32(0.1)), "mfu": 0.1 + 0.2}
    assert second == {"step": 2, "loss": None, "grad_norm": None, "more": {"x": [None]}}


def test_metrics_without_timing_drops_what_two_equal_runs_differ_in(tmp_path):
    _written(tmp_path, 2)
    expected = [{"step": 1, "tokens": 128, "loss": 1.0}, {"step": 2, "tokens": 256, "loss": 0.5}]
    assert metrics_without_timing(tmp_path) == expected
    assert metrics_without_timing(tmp_path / "metrics.jsonl") == expected


def test_a_second_process_in_the_same_directory_is_told_who_is_there(tmp_path):
    script = (
        "import sys; from areca.train.record import RunRecord; RunRecord(sys.argv[1]); print('in', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        with pytest.raises(CheckpointError, match=rf"trained by another process \(pid {holder.pid}\); wait .*--out\.$"):
            RunRecord(tmp_path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    RunRecord(tmp_path).close()  # a killed holder lets go


def test_the_lock_is_let_go_on_close_and_held_until_then(tmp_path):
    with RunRecord(tmp_path) as run:
        with pytest.raises(CheckpointError, match="another process"):
            RunRecord(tmp_path)
        run.close()
        RunRecord(tmp_path).close()


def test_run_json_is_read_or_its_absence_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"not a run directory \(it has no run\.json\)"):
        read_run_json(tmp_path)
    with RunRecord(tmp_path) as run:
        run.write_run_json({"config": {"tokens": 1}})
    assert read_run_json(tmp_path) == {"config": {"tokens": 1}}


def test_a_line_that_the_disk_takes_only_half_of_is_taken_back(tmp_path, monkeypatch):
    half = types.SimpleNamespace(**{name: getattr(os, name) for name in ("ftruncate", "fstat", "strerror")})
    half.write = lambda handle, data: os.write(handle, data[: len(data) // 2])
    with RunRecord(tmp_path) as run:
        run.append_metrics(_line(1))
        with monkeypatch.context() as patch:
            patch.setattr(record, "os", half)
            with pytest.raises(OSError, match="No space left") as caught:
                run.append_metrics(_line(2))
        assert caught.value.filename == str(tmp_path / "metrics.jsonl")
        run.append_metrics(_line(2))
    assert _steps(tmp_path) == [1, 2]


def test_a_full_disk_leaves_only_whole_lines(tmp_path):
    script = textwrap.dedent("""
        import sys
        from areca.train.record import RunRecord
        with RunRecord(sys.argv[1] + "/run") as run:
            try:
                for step in range(1, 10_000):
                    run.append_metrics({"step": step, "filler": "x" * 777})
            except OSError as error:
                print(error.strerror)
        data = open(sys.argv[1] + "/run/metrics.jsonl", "rb").read()
        print(len(data) > 100_000, data.endswith(b"\\n"))
    """)
    mount = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=200k tmpfs "$1" && shift && exec "$@"',
        "sh",
        str(tmp_path),
    ]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("a small file system can't be mounted here")
    done = subprocess.run(
        [*mount, sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["No space left on device", "True True"], done.stderr


def test_an_append_costs_less_than_50_microseconds(tmp_path):
    values = {"step": 1, "tokens": 2048, "z_loss": 1e-4, "grad_norm": 1.23, "update_norm": 0.001, "param_norm": 33.1}
    values |= {
        "loss": 4.123456789,
        "learning_rate": 0.01,
        "batch": 16,
        "tokens_per_second": 1e5,
        "mfu": 0.3,
        "seconds": 0.1,
    }
    costs = []
    with RunRecord(tmp_path) as run:
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(100):
                run.append_metrics(values)
            costs.append((time.perf_counter() - started) / 100)
    assert min(costs) < 50e-6


def test_a_directory_left_before_run_json_may_be_started_in_and_no_other(tmp_path):
    # A kill while the program compiles must not leave a directory that no command accepts.
    run = tmp_path / "run"
    assert unstarted(run)
    with RunRecord(run), Checkpoints(run / "checkpoints"):
        pass
    (run / ".run.json.ab12.tmp").touch()
    assert unstarted(run)
    assert not unstarted(tmp_path)  # holds something that isn't ours
    for name in ("metrics.jsonl", "events.jsonl"):
        (run / name).write_text("{}\n")
        assert not unstarted(run)
        (run / name).write_text("")
    (run / "checkpoints" / "10").mkdir()
    assert not unstarted(run)
    (tmp_path / "file").touch()
    assert not unstarted(tmp_path / "file")


def test_a_run_from_before_mup_is_read_as_palms_parametrization(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"config": {"model": {"d_model": 512}}}))
    assert read_run_json(tmp_path)["config"]["model"] == {"d_model": 512, "base_width": 0}
    (tmp_path / "run.json").write_text(json.dumps({"config": {"model": {"d_model": 64}}}))
    assert read_run_json(tmp_path)["config"]["model"]["base_width"] == 128  # where both are the same
    (tmp_path / "run.json").write_text(json.dumps({"config": {"model": {"d_model": 512, "base_width": 128}}}))
    assert read_run_json(tmp_path)["config"]["model"]["base_width"] == 128
