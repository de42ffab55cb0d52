"""Small stores that the tests of this room share."""

from pathlib import Path

import pytest
from made_text import sentence_text

from areca.data.build import build_store


@pytest.fixture
def text_tree(tmp_path: Path) -> Path:
    """Forty text files of about 1.3 kB under `tree/`."""
    root = tmp_path / "tree"
    for i in range(40):
        file = root / f"part{i % 3}" / f"{i:02}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(sentence_text(i, 20))
    return root


@pytest.fixture(scope="session")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two corpora, `big` three times the size of `small`."""
    root = tmp_path_factory.mktemp("store")
    for name, count in (("big", 60), ("small", 20)):
        for i in range(count):
            file = root / name / f"{i:02}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(sentence_text(1000 * len(name) + i, 20))
    build_store(root / "out", [f"big={root / 'big'}", f"small={root / 'small'}"], vocab_size=300, heldout_fraction=0.1)
    return root / "out"
