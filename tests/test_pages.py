"""The tables that say where to find what have each thing once."""

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
