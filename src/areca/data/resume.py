"""What a build that is under way has done, so that one that was killed goes on where it was.

    gathered.json   the spools are whole: their counts, and of which inputs and versions
    tokens.json     the tokenizer is there; of each corpus, how many chunks of its spool are written as tokens

Both lie in the hidden directory of the build and are gone from the finished store.
"""

import importlib.metadata
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import areca
from areca.data.spool import Spool
from areca.errors import DataError
from areca.files import read_json, sha256_json, write_json

GATHERED, TOKENS = "gathered.json", "tokens.json"
SECONDS = 5.0  # of work that a kill may lose


def versions(*packages: str) -> dict[str, str]:
    """Of areca, Python and these packages."""
    found = {p: importlib.metadata.version(p) for p in packages}
    return {"areca": areca.__version__, "python": platform.python_version()} | found


class Ledger:
    """The state of the build in `directory`, whose inputs have this fingerprint."""

    def __init__(self, directory: Path, fingerprint: str) -> None:
        self._directory = directory
        self._identity = sha256_json({"inputs": fingerprint, "versions": versions("numpy", "tokenizers", "rensa")})
        self.sample: dict[str, Any] | None = None
        self.corpora: dict[str, dict[str, Any]] = {}  # name -> {"chunks", "counts", "files" once it is whole}
        self._last = time.monotonic()

    def goes_on(self) -> bool:
        """Whether the directory has the spools of this very build."""
        try:
            return read_json(self._directory / GATHERED)["identity"] == self._identity
        except (DataError, KeyError, TypeError, OSError):
            return False

    def gathered(self, spools: dict[str, Spool], thresholds: dict[str, int]) -> None:
        """Records that the spools are whole."""
        corpora = {name: s.facts() | {"threshold": thresholds[name]} for name, s in spools.items()}
        write_json(self._directory / GATHERED, {"identity": self._identity, "corpora": corpora})

    def spools(self) -> tuple[dict[str, Spool], dict[str, int]]:
        """The spools and thresholds that `gathered` was given."""
        corpora = read_json(self._directory / GATHERED)["corpora"]
        spools = {name: Spool.of_facts(self._directory, name, facts) for name, facts in corpora.items()}
        return spools, {name: facts["threshold"] for name, facts in corpora.items()}

    def read_tokens(self) -> bool:
        """Whether the tokenizer is there, and then what is written of each corpus."""
        if not (self._directory / TOKENS).exists():
            return False
        found = read_json(self._directory / TOKENS)
        self.sample, self.corpora = found["sample"], found["corpora"]
        return True

    def write_tokens(self) -> None:
        """Records `sample` and `corpora`."""
        write_json(self._directory / TOKENS, {"sample": self.sample, "corpora": self.corpora})
        self._last = time.monotonic()

    def wrote(self, corpus: str, chunks: int, counts: dict[str, int], sync: Callable[[], None]) -> None:
        """Records that so many chunks of a corpus are written, if some seconds have passed since the last record."""
        if time.monotonic() - self._last >= SECONDS:
            sync()
            self.corpora[corpus] = {"chunks": chunks, "counts": dict(counts), "files": None}
            self.write_tokens()

    def finish(self) -> None:
        """Leaves the directory with what belongs to a store."""
        for name in (TOKENS, GATHERED):
            (self._directory / name).unlink(missing_ok=True)
