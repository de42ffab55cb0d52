"""The commands of docs/plan-my-run.md print what stands under them, and its Python runs."""

import re
from pathlib import Path

import pytest

from areca.cli.main import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plan-my-run.md").read_text(encoding="utf-8")
PRINTED = re.findall(r"```sh\nareca (plan [^\n]*)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def _words(text):
    """Lines without their spacing; those of a dry run, which compiles, are left to tests/cli/test_plan_options.py."""
    return [" ".join(line.split()) for line in text.splitlines() if not line.startswith("dry run")]


@pytest.mark.parametrize(("command", "text"), PRINTED, ids=[re.sub(r"\W+", "-", c)[:60] for c, _ in PRINTED])
def test_a_command_prints_what_the_page_shows(command, text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    assert main(command.replace(" --dry-run", "").split()) == 0
    assert _words(capsys.readouterr().out) == _words(text)
    assert (tmp_path / "run.toml").exists() == ("--config-out" in command)


def test_the_page_has_its_commands_and_its_python_runs():
    assert len(PRINTED) >= 7
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["plan"].choice["rule"] == "inference"
