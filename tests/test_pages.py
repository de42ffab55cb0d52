"""The tables that say where to find what have each thing once."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def first_cells(path: Path, header: str) -> list[str]:
    """The first column of the table whose header row begins with `header`."""
    lines = path.read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {header} |"))
    rows = lines[start + 2 :]
    end = next((i for i, line in enumerate(rows) if not line.startswith("|")), len(rows))
    return [row.split("|")[1].strip() for row in rows[:end]]


@pytest.mark.parametrize(("file", "header"), [("README.md", "you have"), ("docs/how-it-works.md", "room")])
def test_no_row_is_there_twice(file, header):
    found = first_cells(ROOT / file, header)
    assert len(found) >= 5
    assert sorted(set(found)) == sorted(found)


def test_the_code_of_the_page_on_python_trains_goes_on_and_evaluates(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs/python-api.md").read_text("utf-8"), re.DOTALL)[1]
    (tmp_path / "books.txt").write_text("".join(f"The river {i} ran past mill {i * 7 % 31}.\n\n" for i in range(4000)))
    (tmp_path / "run.toml").write_text(
        "tokens = 2048\n[model]\nvocab_size = 512\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
        '[data]\nstore = "none"\ncontext = 16\n[batch]\nramp = [[0, 8]]\n'
    )
    for _ in range(2):  # the second time the store and the run are there
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        told, again = map(float, done.stdout.split()[-2:])
        assert told == json.loads((tmp_path / "runs/books/result.json").read_text())["loss"]
        assert again == pytest.approx(told, rel=1e-6)
