"""A server of the tiny run that all tests ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Server, end, start


@pytest.fixture(scope="session")
def server(tiny_run: Path) -> Iterator[Server]:
    """One that all tests ask."""
    server = start(tiny_run)
    yield server
    end(server)
