"""The tables of docs/kaplan-on-our-runs.md are read by `areca fit`, and give what the page prints."""

import re
import sys
from pathlib import Path

import pytest

from areca.cli.main import main
from areca.laws import load

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLES = DOCS / "data"
PAGE = (DOCS / "kaplan-on-our-runs.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["data", "shape", "context", "early-stopped"])
def test_fit_reads_the_runs(name):
    # Some small texts were read until their loss passed ln V, which is asked about where no unit is given.
    rows = load([TABLES / f"kaplan-{name}.csv"], units={"loss": "nats"})
    assert len(rows) > 4
    assert rows.loss.min() > 1


def test_the_law_of_early_stopped_runs_is_fitted(capsys):
    assert main(["fit", str(TABLES / "kaplan-early-stopped.csv"), "--bootstrap", "50"]) == 0
    assert "E + A / N^alpha + B / D^beta" in capsys.readouterr().out


def test_the_page_prints_what_the_tables_say(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS.parent / "benchmarks"), *sys.path])
    import kaplan_show

    kaplan_show.show(TABLES)
    said = capsys.readouterr().out
    block = re.search(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert block
    for line in block[1].splitlines():
        assert " ".join(line.split()) in " ".join(said.split())
