"""The commands of the pages on fits and plans do what is said there."""

import re
import shlex
from pathlib import Path

from areca.cli.main import main
from areca.laws.reading.quantities import KNOWN
from areca.laws.reading.units import UNITS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "runs-table-to-a-plan.md"


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
    # The fitted values, the valleys and the plan; interval ends are left to the eye, and no part is missing.
    headings = (
        "Intervals by three ways",
        "Left out in turn",
        "Bends",
        "What the choices move",
        "check: ",
        "converged: ",
    )
    for heading in headings:
        assert any(line.startswith(heading) for line in printed[0])
        assert heading in said
    for name in ("E ", "A ", "alpha", "B ", "beta"):
        line = next(v for v in printed[0] if v.startswith(name))
        assert " ".join(line.split()[:2]) in " ".join(said.split())
    for line in printed[1]:
        if line.startswith(("184,576", "predicted loss", "half", "best", "double")):
            words = line.partition(",")[0] if line.startswith("predicted") else line
            assert " ".join(words.split()) in " ".join(said.split())
    assert (tmp_path / "run.json").exists()


def test_the_table_of_the_page_on_fits_needs_no_mapping(tmp_path, monkeypatch, capsys):
    text = (DOCS / "fit-my-runs.md").read_text(encoding="utf-8")
    (tmp_path / "runs.csv").write_text(re.search(r"```csv\n(.*?)```", text, re.DOTALL)[1])
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"```sh\n(areca fit runs.*?)\n```", text):
        assert main(shlex.split(command)[1:]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert "note: 9 of 10 rows of runs.csv are taken: corpus=c4." in notes
    assert any("'Model Size (M)' of runs.csv is read in M" in note for note in notes)
    assert any("'eval/bits_per_token' of runs.csv is read in bits-per-token" in note for note in notes)


def test_the_page_on_fits_lists_the_units_and_quantities_that_there_are():
    text = (DOCS / "fit-my-runs.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    words = {word.partition(":")[0] for word in named}
    for quantity, units in UNITS.items():
        for unit in list(units)[1:]:
            assert unit in words, (quantity, unit)
    assert set(KNOWN) - {"learning_rate_factor"} <= words


def test_the_form_of_ones_own_on_the_page_on_fits_gives_what_is_printed_there(tmp_path, monkeypatch, capsys):
    text = (DOCS / "fit-my-runs.md").read_text(encoding="utf-8")
    form = re.search(r"```python\n(from areca.laws import Form.*?)```", text, re.DOTALL)[1]
    command, printed = re.search(r"```console\n\$ (areca fit .*?)\n(.*?)```", text, re.DOTALL).groups()
    (tmp_path / "my_form.py").write_text(form)
    (tmp_path / "runs.csv").write_text(re.search(r"```csv\n(.*?)```", text, re.DOTALL)[1])
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert len(said) == len(lines)
    for one, other in zip(said, lines, strict=True):
        # Parameters and their values; the ends of intervals, which are drawn, are left to the eye.
        drawn = one.split()[0] in ("E", "a", "N_c", "D_c")
        assert (one.split()[:2] == other.split()[:2]) if drawn else one == other
