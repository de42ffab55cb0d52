"""What may be written where: no input is lost, no pipe replaced, and nothing is left of writers that were killed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from areca.cli.main import main
from areca.errors import ConfigError
from areca.files import check_output, write_atomic


def _refused(capsys, *argv):
    assert main(list(map(str, argv))) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "r.csv"
    path.write_text("n_params,n_tokens,loss\n1e6,1e8,4\n")
    return path


def test_no_verb_overwrites_what_it_reads(capsys, table, tmp_path):
    before, link = table.read_bytes(), tmp_path / "link.csv"
    link.symlink_to(table)
    hard = tmp_path / "hard.json"
    hard.hardlink_to(table)
    for out in (table, link, hard, tmp_path / "." / "r.csv"):
        assert "would be overwritten" in _refused(capsys, "fit", table, "--out", out)
        assert "would be overwritten" in _refused(capsys, "plan", table, "--flops", "1e15", "--out", out)
        assert "would be overwritten" in _refused(capsys, "design", table, "--flops", "1e15", "--out", out)
        words = ("plan", table, "--flops", "1e15", "--config-out", out, "--store", "x")
        assert "--config-out" in _refused(capsys, *words)
        assert table.read_bytes() == before
    picture = tmp_path / "x.svg"
    picture.write_text("region,hour,kg_per_kwh\n")
    words = ("--what-if", "pue=1", "--intensity", picture, "--plot", picture)
    assert "would be overwritten" in _refused(capsys, "footprint", "published:gpt-3", *words)
    law = tmp_path / "report.json"
    law.write_text(json.dumps({"parametric": {}}))
    assert "would be overwritten" in _refused(capsys, "report", law, "--out", tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_a_plan_and_its_configuration_are_two_files(capsys, table, tmp_path):
    words = ("--flops", "1e15", "--out", tmp_path / "p.json", "--config-out", tmp_path / "." / "p.json", "--store", "x")
    assert "name two files" in _refused(capsys, "plan", table, *words)


def test_a_record_of_what_is_read_is_kept(tmp_path):
    (tmp_path / "ladder.json").write_text("{}")
    with pytest.raises(ConfigError, match="a record in"):
        check_output("--out", tmp_path / "ladder.json", [tmp_path])
    check_output("--out", tmp_path / "law.json", [tmp_path])


def test_pipes_are_refused_and_the_streams_are_written_and_stay(capsys, table, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no regular file" in _refused(capsys, "fit", table, "--out", pipe)
    with pytest.raises(ConfigError, match="no regular file"):
        write_atomic(pipe, "x")
    check_output("--out", "/dev/null")
    write_atomic("/dev/null", "x")
    assert not os.path.isfile("/dev/null")
    program = "from areca.files import write_atomic; print('a'); write_atomic('/dev/stdout', 'b\\n'); print('c')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "a\nb\nc\n"


def test_what_a_killed_writer_left_goes_with_the_next_write_and_nothing_else_does(tmp_path):
    program = (
        "import os, signal, sys; from areca import files\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "files.write_atomic(sys.argv[1], 'half')"
    )
    killed = subprocess.run([sys.executable, "-c", program, tmp_path / "law.json"], check=False)
    assert killed.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    foreign = tmp_path / ".law.json.abcdefgh.tmp"
    foreign.write_text("not ours")
    alive = subprocess.Popen(
        [sys.executable, "-c", program.replace("os.kill(os.getpid(), signal.SIGKILL)", "input()"), tmp_path / "b.json"],
        stdin=subprocess.PIPE,
    )
    try:
        while not (held := list(tmp_path.glob(".b.json.*"))) or not held[0].stat().st_size:
            time.sleep(0.01)
        write_atomic(tmp_path / "plan.json", "{}")
        assert not left.exists()
        assert {p.name for p in tmp_path.iterdir()} == {foreign.name, held[0].name, "plan.json"}
    finally:
        alive.kill()
        alive.communicate()
