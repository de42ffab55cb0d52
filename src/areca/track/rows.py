"""What is sent of a run: the numbers of metrics.jsonl by a tracker's names, its settings without what is private.

Lines are read as they are appended. metrics.jsonl is also cut, when a run goes back or is resumed; the reader sees
that by the last line it read, which has the seconds of its step and so is never written twice.
"""

import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

METRICS, EVENTS, RUN = "metrics.jsonl", "events.jsonl", "run.json"
# Groups of panels; what is not named is of training.
GROUPS = {"tokens": "", "tokens_per_second": "speed", "mfu": "speed", "hfu": "speed", "seconds": "speed"}
GROUPS |= {"watts": "energy"}
NO_NUMBERS = ("step", "steady", "saving")
# Differ between two equal runs, so they don't tell whether a step was taken on other data.
TIMING = {"tokens_per_second", "mfu", "hfu", "seconds", "steady", "saving", "watts"}
_SECRET = re.compile(r"token$|secret|password|passwd|api_?key|credential|auth", re.IGNORECASE)
_PATH = re.compile(r"(?:~|[A-Za-z]:)?[\\/].*[\\/]|^~|^[\\/]")


PART = 4 << 20  # bytes that are read at a time


class Lines:
    """The finished lines of a JSON-lines file that grows and is sometimes cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.restart()

    def restart(self) -> None:
        """The next `read` begins at the first line."""
        self._offset, self._last = 0, b""

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """The next lines, and whether they begin at the first one because the file was cut; [] at its end.

        A part of a long file at a time, so that memory stays small: read until nothing comes. What is no JSON object is
        left out: the run's own reader complains of it.
        """
        try:
            with self.path.open("rb") as f:
                start = self._offset - len(self._last)
                f.seek(start)
                if cut := f.read(len(self._last)) != self._last:
                    self.restart()
                    f.seek(0)
                data = f.read(PART)
                while b"\n" not in data and (more := f.read(PART)):
                    data += more
        except FileNotFoundError:
            cut = self._offset > 0
            self.restart()
            return [], cut
        data = data[: data.rfind(b"\n") + 1]
        lines = data.splitlines(keepends=True)
        if lines:
            self._offset, self._last = self._offset + len(data), lines[-1]
        return [v for v in map(_object, lines) if v is not None], cut


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics.jsonl as {"train/loss": ...}; what is no finite number has no entry."""
    found = {}
    for name, value in row.items():
        if name in NO_NUMBERS or not _is_number(value):
            continue
        group = GROUPS.get(name, "train")
        found[f"{group}/{name}" if group else name] = float(value)
    return found


def evaluation(event: Mapping[str, Any]) -> dict[str, float]:
    """The losses of an event "evaluate": {"eval/loss": ..., "eval/CORPUS": ...}."""
    by_corpus = event.get("by_corpus")
    losses = {"loss": event.get("loss"), **(by_corpus if isinstance(by_corpus, dict) else {})}
    return {f"eval/{name}": float(value) for name, value in losses.items() if _is_number(value)}


def digest(row: Mapping[str, Any]) -> int:
    """32 bits of what training made of a step: equal, but for one chance in 4e9, if the step is the same."""
    return zlib.crc32(json.dumps({k: v for k, v in row.items() if k not in TIMING}, sort_keys=True).encode()) or 1


def settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """run.json as flat settings, {"config.model.d_model": 64, "counts.n_params": ...}.

    Of a path only its last part is left, and nothing whose name is that of a secret.
    """
    wanted = ("config", "counts", "versions", "topology", "labels", "fingerprint")
    return dict(_flat({name: run[name] for name in wanted if name in run}))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if _SECRET.search(str(name)) and isinstance(value, str):
            continue
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", json.dumps(_without_paths(value))
        elif value is not None:
            yield f"{prefix}{name}", _without_paths(value)


def _without_paths(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_paths(v) for v in value]
    if isinstance(value, str) and _PATH.match(value):
        return re.split(r"[\\/]", value.rstrip("\\/"))[-1]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
