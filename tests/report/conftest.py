"""A synthetic quickstart, written once for all tests of the report."""

import json
import shutil
from pathlib import Path

import full_law
import pytest
from synthetic_quickstart import write_quickstart

from areca.laws import fit_laws, load


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A finished quickstart's directory; tests read it and don't change it."""
    return write_quickstart(tmp_path_factory.mktemp("quickstart"))


@pytest.fixture
def quickstart(finished, tmp_path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(finished, tmp_path / "quickstart"))


@pytest.fixture(scope="session")
def fitted(tmp_path_factory) -> Path:
    """A directory with a quick fit of full_law's table (plain.json), law.json with all checks, a plan and
    a design; tests read it and don't change it."""
    root = tmp_path_factory.mktemp("fitted")
    table = full_law.write_table(root / "runs.csv")
    law = fit_laws(load([table]), samples=100, deep=False).to_dict()
    for name, value in (
        ("plain.json", law),
        ("law.json", full_law.with_checks(law)),
        ("plan.json", full_law.plan(law)),
        ("design.json", full_law.design(law)),
    ):
        (root / name).write_text(json.dumps(value))
    return root
