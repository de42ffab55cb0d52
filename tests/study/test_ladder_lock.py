"""A ladder's directory is worked in by one process at a time."""

import pytest

from areca.cli.main import main
from areca.errors import BusyError
from areca.files import locked
from areca.study.ladder import plan_ladder, run_ladder


def test_a_ladder_in_use_is_refused_before_anything_is_written(tiny_store, tmp_path, capsys):
    ladder = plan_ladder(tmp_path / "ladder", tiny_store, [1e7], sizes=1, context=16, epochs=1e6)
    heard = []
    with locked(ladder.directory):  # the lock is of the opened file, so it holds against this process too
        with pytest.raises(BusyError, match=r"ladder is in use by another process \(pid \d+\); wait until it ends"):
            run_ladder(ladder, on_progress=lambda *a: heard.append(a), on_result=lambda *a: heard.append(a))
        argv = ["ladder", str(tiny_store), "--out", str(ladder.directory), "--context", "16", "--sizes", "1"]
        assert main([*argv, "--epochs", "1e6", "--budgets", "1e7"]) == 2
        assert capsys.readouterr().err.startswith(f"areca ladder: {ladder.directory} is in use by another process")
    assert heard == []
    assert [p.name for p in ladder.directory.iterdir()] == [".lock"]
