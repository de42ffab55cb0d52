"""The walk through docs/runs-table-to-a-plan.md gives the numbers that are printed there."""

import re
from pathlib import Path

from areca.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runs-table-to-a-plan.md"


def test_the_page_on_plans_from_a_table(tmp_path, monkeypatch, capsys):
    text = PAGE.read_text(encoding="utf-8")
    table = re.search(r"```csv\n(.*?)```", text, re.DOTALL)[1]
    commands = re.findall(r"^areca ((?:fit|plan) .*)$", text, re.MULTILINE)
    printed = [block.splitlines() for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL)]
    (tmp_path / "runs.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert main(command.split()) == 0
    said = capsys.readouterr().out
    # The fitted values, the valleys and the plan; interval ends are left to the eye.
    for name in ("E ", "A ", "alpha", "B ", "beta"):
        line = next(v for v in printed[0] if v.startswith(name))
        assert " ".join(line.split()[:2]) in " ".join(said.split())
    for line in printed[1]:
        if line.startswith(("184,576", "predicted loss", "half", "best", "double")):
            assert " ".join(line.split()) in " ".join(said.split())
    assert (tmp_path / "run.json").exists()
