"""A synthetic quickstart, written once for all tests of the report."""

import shutil
from pathlib import Path

import pytest
from synthetic_quickstart import write_quickstart


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """A finished quickstart's directory; tests read it and don't change it."""
    return write_quickstart(tmp_path_factory.mktemp("quickstart"))


@pytest.fixture
def quickstart(finished, tmp_path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(finished, tmp_path / "quickstart"))
