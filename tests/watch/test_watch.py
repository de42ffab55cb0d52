"""What is seen of a run from outside: going on, killed, finished, not begun, torn, on any terminal."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

from areca.cli.main import main
from areca.config import BatchConfig, to_dict
from areca.errors import BusyError
from areca.files import take_lock
from areca.train import schedules
from areca.watch import live
from areca.watch.process import holder
from areca.watch.run import RunWatch, steps_of
from areca.watch.text import bar, clock, family_lines, run_lines, spark
from tiny import tiny_config


def row(step, loss, **more):
    values = {"step": step, "tokens": 64 * step, "loss": loss, "learning_rate": 0.01, "batch": 4, "mfu": 0.25}
    return values | {"seconds": 0.5, "steady": True} | more


def made(directory, rows=(), events=(), **config):
    """A run directory of tiny's configuration: 12 steps of 4 x 16 tokens."""
    directory.mkdir(parents=True)
    run = {"config": to_dict(tiny_config("store", **config)), "counts": {"n_params": 4096}}
    (directory / "run.json").write_text(json.dumps(run))
    (directory / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (directory / "events.jsonl").write_text("".join(json.dumps({"time": 1.0, **e}) + "\n" for e in events))
    return directory


def old(directory, seconds=600):
    """As if nothing had been written for so long."""
    for path in directory.iterdir():
        os.utime(path, (time.time() - seconds,) * 2)


def test_where_a_run_is_and_how_fast_it_goes(tmp_path):
    rows = [row(1, 5.0, seconds=9.0, steady=False), row(2, 4.0), row(3, 3.0)]
    run = made(tmp_path / "a", rows, [{"event": "start", "step": 0}, {"event": "evaluate", "step": 2, "loss": 4.5}])
    handle = take_lock(run)
    try:
        state = RunWatch(run).look()
    finally:
        os.close(handle)
    assert (state.phase, state.process.alive, state.process.pid) == ("running", "yes", os.getpid())
    assert (state.step, state.steps, state.tokens, state.total_tokens) == (3, 12, 192, 768)
    assert (state.loss, state.loss_recent, state.heldout) == (3.0, 4.0, (2, 4.5))
    assert state.tokens_per_second == 2 * 64 / 1.0  # the first step, which is not steady, does not count
    assert state.mfu == 0.25
    assert state.seconds_left == (768 - 192) / 128
    assert state.process.memory is not None
    assert state.process.memory > 2**20
    assert state.curve == [5.0, 4.0, 3.0]


@pytest.mark.parametrize("ramp", [((0, 4),), ((0, 2), (100, 8)), ((0, 3), (48, 5), (49, 7), (500, 1))])
def test_steps_are_those_of_the_schedule(ramp):
    config = tiny_config("store", batch=BatchConfig(ramp=ramp))
    plan = list(schedules.steps(config.batch, config.tokens, config.data.context))
    assert steps_of(to_dict(config)) == len(plan)


def test_what_became_of_a_run(tmp_path, tiny_run):
    assert RunWatch(tmp_path / "nothing").look().phase == "not begun"
    (tmp_path / "empty").mkdir()
    assert RunWatch(tmp_path / "empty").look().phase == "not begun"
    assert RunWatch(tiny_run).look().phase == "finished"
    begun, rows = {"event": "start", "step": 0}, [row(1, 5.0)]
    for name, events, phase in (
        ("killed", [begun], "killed"),
        ("stopped", [begun, {"event": "interrupt", "step": 1, "signal": "SIGTERM"}], "stopped"),
        ("diverged", [begun, {"event": "not_finite", "step": 1}], "diverged"),
        ("again", [begun, {"event": "interrupt", "step": 1}, {"event": "resume", "step": 1}], "killed"),
    ):
        run = made(tmp_path / name, rows, events)
        old(run)
        assert RunWatch(run).look().phase == phase
    assert RunWatch(made(tmp_path / "no-lock", rows, [begun])).look().phase == "unseen"


def test_a_run_of_another_machine_is_told_from_a_killed_one_by_its_lines(tmp_path):
    run = made(tmp_path / "a", [row(1, 5.0)], [{"event": "start", "step": 0}])
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    (run / ".lock").write_text(gone.stdout)
    watch = RunWatch(run)
    assert watch.look().phase == watch.look().phase == "killed"
    with (run / "metrics.jsonl").open("a") as f:
        f.write(json.dumps(row(2, 4.0)) + "\n")
    state = watch.look()
    assert (state.phase, state.step) == ("unseen", 2)
    assert watch.look().phase == "unseen"  # for a while
    assert state.seconds_left is not None


def test_a_process_that_died_is_not_alive_and_watching_takes_no_lock(tmp_path):
    code = (
        "import sys; from areca.files import take_lock; from pathlib import Path; take_lock(Path(sys.argv[1])); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdin=subprocess.PIPE)
    try:
        until = time.monotonic() + 20
        while holder(tmp_path).alive != "yes" and time.monotonic() < until:
            time.sleep(0.02)
        assert (holder(tmp_path).alive, holder(tmp_path).pid) == ("yes", process.pid)
        with pytest.raises(BusyError):
            take_lock(tmp_path)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert holder(tmp_path).alive == "no"
    # Another process that has got the same pid does not hold the file.
    (tmp_path / ".lock").write_text(f"{os.getpid()}\n")
    assert holder(tmp_path).alive == "no"
    os.close(take_lock(tmp_path))


def test_a_torn_line_lost_values_and_a_rewind_are_read_as_they_are(tmp_path):
    run = made(tmp_path / "a", [row(1, 5.0), row(2, None), row(3, 3.0)])
    watch = RunWatch(run)
    with (run / "metrics.jsonl").open("a") as f:
        f.write('{"step": 4, "lo')
    assert watch.look().step == 3
    (run / "metrics.jsonl").write_text(json.dumps(row(1, 5.0)) + "\n")
    with (run / "events.jsonl").open("a") as f:
        f.write(json.dumps({"time": 1.0, "event": "rewind", "to_step": 1, "step": 3}) + "\n" + '{"event": "sa')
    state = watch.look()
    assert (state.step, state.rewinds, state.curve) == (1, 1, [5.0])
    (run / "run.json").write_text("{")
    assert RunWatch(run).look().steps is None


def test_islands_that_were_lost_and_came_back(tmp_path):
    from areca.config import IslandsConfig

    lost = {"event": "island_lost", "step": 3, "island": "b", "why": "it does not answer", "left": ["a", "c"]}
    islands = IslandsConfig(count=3)
    run = made(tmp_path / "a", [row(1, 5.0)], [{"event": "start", "step": 0}, lost], islands=islands)
    assert RunWatch(run).look().islands == (2, 3)
    assert any("lost b at step 3: it does not answer" in line for line in run_lines(RunWatch(run).look()))
    back = made(tmp_path / "b", [row(1, 5.0)], [lost, {"event": "island_joined", "island": "b"}], islands=islands)
    assert RunWatch(back).look().islands == (3, 3)


@pytest.mark.parametrize("width", [20, 37, 80, 200])
def test_lines_fit_the_terminal(tiny_run, width):
    state = RunWatch(tiny_run).look()
    lines = run_lines(state, width)
    assert max(map(len, lines)) <= width
    assert lines[1].startswith("step      12 of 1" if width == 20 else "step      12 of 12 (100.0%)")
    assert max(map(len, family_lines([state] * 3, "ladder", width))) <= width


def test_what_others_wrote_moves_no_cursor(tmp_path):
    run = made(tmp_path / "a", [row(1, 5.0)], [{"event": "tracker_failed", "tracker": "wandb", "why": "\x1b[2J\nno\r"}])
    assert all(c.isprintable() for line in run_lines(RunWatch(run).look()) for c in line)


def test_the_curve_falls_from_left_to_right_and_holes_are_left_out():
    assert spark([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert spark([4.0, float("nan"), 2.0, 2.0], 10) == "█▁▁"
    assert spark([3.0] * 100, 5) == "▁▁▁▁▁"
    assert spark([], 5) == spark([float("nan")], 5) == spark([1.0], 0) == ""
    assert bar(0.5, 4) == "██░░"
    assert (clock(59.6), clock(3661), clock(200_000)) == ("1:00", "1:01:01", "2 d 7 h")


def test_a_ladder_shows_runs_that_have_not_begun_too(tmp_path, tiny_run, capsys):
    ladder = tmp_path / "ladder"
    shutil.copytree(tiny_run, ladder / "runs" / "one", ignore=shutil.ignore_patterns("checkpoints"))
    runs = [{"name": "one", "path": "runs/one"}, {"name": "two", "path": "runs/two"}]
    (ladder / "ladder.json").write_text(json.dumps({"runs": runs}))
    assert main(["watch", str(ladder), "--once"]) == 0
    head, one, two = capsys.readouterr().out.splitlines()
    assert head == f"{ladder}: 2 runs, 1 finished, 1 not begun"
    assert one.split()[:3] == ["one", "finished", "100%"]
    assert two.split() == ["two", "not", "begun"]
    assert len(family_lines(live.View(ladder).look() * 20, "x", 80, height=10)) == 9


def test_a_directory_of_runs_ladders_and_quickstarts_shows_all_their_runs(tmp_path, capsys):
    made(tmp_path / "runs" / "alone", [row(12, 2.0)])
    made(tmp_path / "runs" / "ladder" / "runs" / "one", [row(3, 3.0)])
    made(tmp_path / "quickstart" / "verify", [row(4, 3.0)])
    for ladder in (tmp_path / "runs" / "ladder", tmp_path / "quickstart" / "ladder"):
        ladder.mkdir(exist_ok=True)
        (ladder / "ladder.json").write_text(json.dumps({"runs": [{"name": "one", "path": "runs/one"}]}))
    (tmp_path / "quickstart" / "quickstart.json").write_text("{}")
    assert main(["watch", str(tmp_path), "--once"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{tmp_path}: 4 runs, ")
    names = ["quickstart/ladder/one", "quickstart/verify", "alone", "ladder/one"]
    assert sorted(line.split()[0] for line in lines) == sorted(names)
    view = live.View(tmp_path)
    assert not view.over(view.look())
    handle = take_lock(tmp_path / "quickstart")  # as a quickstart that makes no run at the moment
    assert view._watch.alive()
    os.close(handle)
    assert not view._watch.alive()


def test_copies_are_no_runs(tmp_path, capsys):
    made(tmp_path / "run", [row(12, 2.0)])
    copy = tmp_path / "copied"
    (copy / "runs" / "one").mkdir(parents=True)
    (copy / "runs" / "one" / "copy.json").write_text("{}")
    (copy / "ladder.json").write_text(json.dumps({"runs": [{"name": "one", "path": "runs/one"}]}))
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}: 1 run")
    for place in (copy, copy / "runs" / "one"):
        assert main(["watch", str(place)]) == 2
        assert "is a copy (`--copy-to`); watch the directory that it is made of" in capsys.readouterr().err
    for verb in ("watch", "fit", "report", "trace"):
        assert main([verb, "s3://lab/ladder"]) == 2
        assert f"s3://lab/ladder is a URL, and areca {verb} reads files of this machine" in capsys.readouterr().err


def test_json_and_plain_text_and_mistakes(tmp_path, tiny_run, capsys):
    assert main(["watch", str(tiny_run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert (found["phase"], found["step"], found["steps"]) == ("finished", 12, 12)
    assert found["energy_kwh"] > 0
    assert main(["watch", str(tiny_run)]) == 0  # no terminal: once
    assert capsys.readouterr().out.startswith("run: finished; ")
    assert main(["watch", str(tmp_path / "later")]) == 0
    assert capsys.readouterr().out == "later: not begun\n"
    assert main(["watch", str(tiny_run / "run.json")]) == 2
    assert "is a file; name a run directory" in capsys.readouterr().err
    assert main(["watch", str(tiny_run), "--interval", "0"]) == 2
    assert "--interval is 0; it must be from 0.1 to 3,600 seconds" in capsys.readouterr().err


def test_only_what_may_still_become_a_run_has_not_begun(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "starting" / "checkpoints").mkdir(parents=True)
    (tmp_path / "starting" / ".lock").touch()
    for name in ("later", "empty", "starting"):
        assert main(["watch", str(tmp_path / name)]) == 0
        assert "not begun" in capsys.readouterr().out
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").touch()
    damaged = {"cut": ("run.json", '{"config": {'), "list": ("run.json", "[]"), "ladder": ("ladder.json", "{")}
    for name, (file, content) in damaged.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(content)
    says = {
        "photos": "photos holds no run (it has no run.json, nor has a directory in it); name one of `areca train`.",
        "cut": "run.json is not valid JSON (",
        "list": "run.json is not the record of a run; restore it from a copy.",
        "ladder": "ladder.json is not valid JSON (",
    }
    for name, words in says.items():
        for options in ([], ["--once"], ["--json"]):
            assert main(["watch", str(tmp_path / name), *options]) == 2
            out, error = capsys.readouterr()
            assert words in error
            assert (out, error.count("\n")) == ("", 1)


@pytest.mark.parametrize("leave", [b"q", b"\x03"])
def test_the_live_view_leaves_by_a_key_and_the_terminal_is_as_before(tmp_path, leave):
    run = made(tmp_path / "a", [row(1, 5.0), row(2, 4.0)], [{"event": "start", "step": 0}])
    lock = take_lock(run)
    controller, terminal = pty.openpty()
    import termios

    before = termios.tcgetattr(terminal)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "60", "LINES": "24"}
    command = [sys.executable, "-m", "areca", "watch", str(run), "--interval", "0.2"]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    seen, left = b"", False
    try:
        until = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < until:
            ready, _, _ = select.select([controller], [], [], 0.1)
            seen += os.read(controller, 65536) if ready else b""
            if b"q leaves" in seen and not left:
                left = True
                if leave == b"\x03":
                    process.send_signal(signal.SIGINT)
                else:
                    os.write(controller, leave)
        assert process.wait(1) == 0
        assert termios.tcgetattr(terminal) == before
    finally:
        process.kill()
        process.wait()
        for handle in (controller, terminal, lock):
            os.close(handle)
    assert b"2 of 12" in seen
    assert b"Traceback" not in seen
