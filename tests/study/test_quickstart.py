"""The quickstart end to end on a tiny text: every stage real but the law, which is fitted to a known truth."""

import json
import subprocess
import sys

import numpy as np
import pytest

from areca.cli.main import main
from areca.errors import ConfigError, DataError
from areca.files import locked, read_json
from areca.laws import Observations, fit_laws
from areca.runtime import available_cores
from areca.study import quickstart as module
from areca.study.quickstart import Settings, quickstart
from tiny import text


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Settings whose ladder takes seconds, on text of the test's own."""
    for i in range(60):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{i:02}.txt").write_text(text(i, lines=60))
    monkeypatch.setattr(module, "FLOPS_PER_MINUTE", 1.2e10)
    monkeypatch.setattr(module, "SIZES", 2)
    monkeypatch.setattr(module, "EPOCHS", 100.0)
    monkeypatch.setattr(module, "PROMPTS", ("", "areca"))
    texts = (f"texts={tmp_path / 'texts'}",)
    return Settings(minutes=2.0, sources=texts, vocab_size=300, context=16, verify_threads=available_cores())


def _known_law(path, budgets):
    """law.json of L = 1.5 + 8 / N^0.4 + 60 / D^0.4 with 0.3% noise, observed around the test's budgets."""
    rng = np.random.default_rng(0)
    n = np.tile(np.geomspace(5e3, 2e5, 6), 3)
    c = np.repeat(budgets, 6)
    d = c / (6 * n)
    loss = (1.5 + 8 / n**0.4 + 60 / d**0.4) * np.exp(0.003 * rng.standard_normal(18))
    fit_laws(Observations(n, d, c, loss, budget=c), samples=200).save(path)


@pytest.mark.slow
def test_the_whole_story_and_the_same_command_again(small, tmp_path):
    out = tmp_path / "out"
    budgets = small.budgets()
    clock = module._open(out, small)
    clock.write()
    _known_law(out / "law.json", budgets)
    lines: list[str] = []
    summary = quickstart(out, small, lines.append)

    report, result, plan = (read_json(out / p) for p in ("report.json", "verify/result.json", "plan.json"))
    assert json.loads(json.dumps(summary)) == report
    assert report["achieved_loss"] == result["loss"]
    assert report["predicted_loss"] == pytest.approx(plan["predicted_loss"])
    low, high = report["predicted_interval_90"]
    assert low < report["predicted_loss"] < high
    # The plan carries its energy and carbon, at the energy a FLOP of the run it is like.
    assert plan["cost"]["energy_kwh"]["value"] > 0
    assert plan["cost"]["energy_kwh"]["kind"]
    assert plan["cost"]["carbon_kg"]["kind"]
    assert report["relative_error"] == pytest.approx(plan["predicted_loss"] / result["loss"] - 1)
    assert result["flops_exact"] == pytest.approx(module.STRETCH * budgets[-1], rel=0.05)
    losses = [read_json(p)["loss"] for p in (out / "ladder").rglob("result.json")]
    assert len(losses) == module.SIZES * len(module.RUNGS)
    assert result["n_tokens"] == pytest.approx(plan["best"]["n_tokens"], rel=0.05)
    # A model of 300 tokens that has learnt nothing loses ln 300 nats; the planned run is worth more than the rungs.
    assert result["loss"] < min(losses) < max(losses) < np.log(300)
    assert len(json.loads((out / "samples.json").read_text())) == len(module.PROMPTS)
    assert (out / "report.html").stat().st_size > 1_000_000
    assert any("inside" in line or "OUTSIDE" in line for line in lines)

    made = {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}
    assert quickstart(out, small, lines.append)["achieved_loss"] == report["achieved_loss"]
    assert made == {p: p.stat().st_mtime_ns for p in out.rglob("result.json")}


def test_other_settings_in_the_same_directory_are_refused_with_what_differs(small, tmp_path):
    module._open(tmp_path / "out", small)
    with pytest.raises(ConfigError, match="seed: 0 -> 5"):
        module._open(tmp_path / "out", module.replace(small, seed=5))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty"):
        quickstart(tmp_path / "full", small, print)
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["mine.txt"]


def test_a_second_quickstart_in_the_same_place_is_refused(capsys, tmp_path):
    """The first is a process of its own that holds the directory as a quickstart does, then is killed."""
    out = tmp_path / "out"
    hold = f"import time; from pathlib import Path; from areca.files import locked\nwith locked(Path({str(out)!r})):"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{hold} print('in', flush=True); time.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "in\n"
    before = {p: p.read_bytes() for p in out.iterdir()}
    assert main(["quickstart", "--out", str(out), "--minutes", "2"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{out} is in use by another process (pid {process.pid}); wait until it ends" in said
    assert {p: p.read_bytes() for p in out.iterdir()} == before
    process.kill()
    process.wait()
    process.stdout.close()
    with locked(out):  # what a killed process held is free
        pass


def test_what_a_quickstart_killed_at_its_start_leaves_is_taken_over(small, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").write_text("123\n")
    (tmp_path / "out" / ".quickstart.json.x7.tmp").write_text("{")
    assert module._open(tmp_path / "out", small).record["stages"] == []


def test_a_record_of_something_else_is_refused(small, tmp_path):
    (tmp_path / "quickstart.json").write_text('{"settings": {}, "stages": 3}')
    with pytest.raises(DataError, match=r"quickstart\.json is not a quickstart's record"):
        quickstart(tmp_path, small, print)


def test_minutes_that_ask_for_more_text_than_there_is_name_the_minutes(small, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "EPOCHS", 0.01)
    with pytest.raises(ConfigError, match="minutes is 2, and runs that large would read a corpus"):
        quickstart(tmp_path / "out", small, print)
