"""The record of one run: run.json, metrics.jsonl, events.jsonl and the lock that keeps a second writer out.

Every line is one write to the file, so a killed process loses no line that it appended and leaves at most one
unfinished last line, which readers skip and the next writer cuts off. A resumed run cuts metrics.jsonl back to its
checkpoint's step and goes on in the same file, so the file ends as if the run had never stopped. `sync` before a
checkpoint is recorded makes the lines up to it durable against a power cut as well.
"""

import errno
import fnmatch
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from areca.errors import BusyError, CheckpointError, RunBusyError
from areca.files import LOCK, read_json, read_jsonl, take_lock, write_json
from areca.model.config import ModelConfig
from areca.train.checkpoint_files import RECORD

# Where a quickstart, a ladder and a directory of runs have theirs; the first is shown.
_RUNS_BELOW = ("verify/run.json", "runs/*/run.json", "ladder/runs/*/run.json", "*/run.json")
RUN, METRICS, EVENTS, CHECKPOINTS = "run.json", "metrics.jsonl", "events.jsonl", "checkpoints"
HELD = ".copying"  # what is held of a run while it is copied to a URL
REWINDS, RESULT = "rewinds.json", "result.json"
# Differ between two equal runs.
TIMING_FIELDS = frozenset({"tokens_per_second", "mfu", "hfu", "seconds", "steady", "saving", "watts"})


class RunRecord:
    """The files of one run, open for writing by this process alone.

    Raises CheckpointError if another process has the run open. Close it, or use it in a `with` statement; a killed
    process lets go of the lock too.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.run_dir)
        self._metrics = self._events = -1
        try:
            self._metrics = _open_lines(self.run_dir / METRICS)
            self._events = _open_lines(self.run_dir / EVENTS)
        except BaseException:
            self.close()
            raise

    def append_metrics(self, values: dict[str, Any]) -> None:
        """Appends one line to metrics.jsonl; "step" counts up by one from line to line."""
        _append(self._metrics, values, self.run_dir / METRICS)

    def append_event(self, event: str, **fields: Any) -> None:
        """Appends one line to events.jsonl: the time in Unix seconds, the event and its fields."""
        _append(self._events, {"time": time.time(), "event": event, **fields}, self.run_dir / EVENTS)

    def truncate_metrics(self, after_step: int) -> int:
        """Drops the metrics past a checkpoint's step, and an unfinished last line, in one step; returns lines dropped.

        Raises CheckpointError if the metrics end before that step: the file was changed since the checkpoint.
        """
        path = self.run_dir / METRICS
        keep, dropped, last = _cut(path.read_bytes(), after_step)
        if last != after_step:
            raise CheckpointError(
                f"{path} ends at step {last}, before the checkpoint of step {after_step}; restore the file from a copy"
                " or start the run again in a new directory."
            )
        os.ftruncate(self._metrics, keep)
        return dropped

    def sync(self) -> None:
        """Makes all lines appended so far durable."""
        os.fsync(self._metrics)
        os.fsync(self._events)

    def write_run_json(self, values: dict[str, Any]) -> None:
        """Writes run.json, atomically."""
        write_json(self.run_dir / RUN, values)

    def close(self) -> None:
        """Closes the files and lets go of the lock. Safe to call twice."""
        for handle in (self._metrics, self._events, self._lock):
            if handle >= 0:
                os.close(handle)
        self._metrics = self._events = self._lock = -1

    def __enter__(self) -> "RunRecord":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unstarted(run_dir: Path | str) -> bool:
    """True if a run may begin there: absent, empty, or with no more than a run killed before its run.json leaves."""
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        return not run_dir.exists()
    if not _only(run_dir, {LOCK, METRICS, EVENTS, CHECKPOINTS, HELD}, RUN):
        return False
    if any((run_dir / name).exists() and (run_dir / name).stat().st_size for name in (METRICS, EVENTS)):
        return False
    within = run_dir / CHECKPOINTS
    return not within.exists() or _only(within, {RECORD}, RECORD)


def _only(directory: Path, names: set[str], written: str) -> bool:
    """True if nothing but `names` is there, and what a killed atomic write of `written` leaves.

    By one listing: another process may be about to give such a file its name.
    """
    found = {p.name for p in directory.iterdir()}
    return found <= names | set(fnmatch.filter(found, f".{written}.*.tmp"))


def read_run_json(run_dir: Path | str) -> dict[str, Any]:
    """run.json of a run directory; CheckpointError says when the directory holds no run."""
    path = Path(run_dir) / RUN
    if not path.exists():
        raise CheckpointError(_no_run(Path(run_dir)))
    run = read_json(path)
    if isinstance(run, dict) and isinstance(run.get("config"), dict) and isinstance(run["config"].get("model"), dict):
        model = run["config"]["model"]
        # Before muP was there all runs were PaLM's: up to the base width that is the same.
        model.setdefault(
            "base_width", ModelConfig.base_width if model.get("d_model", 0) <= ModelConfig.base_width else 0
        )
    return run


def _no_run(path: Path) -> str:
    """What a path is instead of a run directory, and what to name or do."""
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        return f"{path} {what}; name a run directory, one that `areca train` made."
    none = f"{path} is not a run directory (it has no {RUN})"
    if (path / "config.json").is_file():  # of transformers
        return (
            f"{none} but a Hugging Face model; bring it in first, `areca import hf {path} --out MODEL`, and name that."
        )
    for pattern in _RUNS_BELOW:
        if (below := min(path.glob(pattern), default=None)) is not None:
            return f"{none} but one of several runs; name one of them, such as {below.parent}."
    return f"{none}; name one that `areca train` made."


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """All finished lines of a metrics.jsonl, or of the one in a run directory."""
    path = Path(path)
    return list(read_jsonl(path / METRICS if path.is_dir() else path))


def read_events(run_dir: Path | str) -> list[dict[str, Any]]:
    """All finished lines of a run's events.jsonl."""
    return list(read_jsonl(Path(run_dir) / EVENTS))


def read_evaluations(run_dir: Path | str) -> list[dict[str, Any]]:
    """The held-out evaluations of a run by rising step: {"step", "tokens", "loss", ...}.

    A run that was killed or went back evaluates some steps again, with the same bits or in place of what it threw away;
    the last of each step counts.
    """
    found = {e["step"]: e for e in read_events(run_dir) if e["event"] == "evaluate"}
    return [{k: v for k, v in found[step].items() if k not in ("time", "event")} for step in sorted(found)]


def metrics_without_timing(path: Path | str) -> list[dict[str, Any]]:
    """The metrics without what differs between two equal runs: equal lists mean bit-identical training."""
    return [{k: v for k, v in row.items() if k not in TIMING_FIELDS} for row in read_metrics(path)]


def _lock(run_dir: Path) -> int:
    """An exclusive lock on the run directory, held until the handle is closed or the process ends."""
    try:
        return take_lock(run_dir, "being trained")
    except BusyError as error:
        raise RunBusyError(str(error)) from None


def _open_lines(path: Path) -> int:
    """Opens a JSON-lines file for appending, its unfinished last line cut off."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        size = end = os.fstat(handle).st_size
        while end > 0:
            start = max(0, end - 65536)
            newline = os.pread(handle, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(handle, end)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _append(handle: int, values: dict[str, Any], path: Path) -> None:
    """Appends one line by one write; if the disk takes only part of it, that part is removed and OSError raised."""
    try:
        line = json.dumps(values, allow_nan=False, default=_plain)
    except ValueError:
        line = json.dumps(_finite(values), allow_nan=False)
    data = line.encode("utf-8") + b"\n"
    written = os.write(handle, data)
    if written != len(data):
        os.ftruncate(handle, os.fstat(handle).st_size - written)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def _plain(value: Any) -> Any:
    """Scalars of numpy and jax as Python numbers (float32 widens exactly)."""
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a value for JSON.")


def _finite(value: Any) -> Any:
    """The same values with null for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut(data: bytes, after_step: int) -> tuple[int, int, int]:
    """Where to cut metrics so that the last line is of `after_step` or before.

    Searched from the end, as steps count up and few lines are past a checkpoint.

    Returns:
        Bytes to keep, lines to drop (an unfinished one counted), the step of the last line kept (0 if none).
    """
    end = data.rfind(b"\n") + 1
    dropped = int(end < len(data))
    while end > 0:
        start = data.rfind(b"\n", 0, end - 1) + 1
        step = _step(data[start:end])
        if step is not None and step <= after_step:
            return end, dropped, step
        end, dropped = start, dropped + 1
    return 0, dropped, 0


def _step(line: bytes) -> int | None:
    """The step of a metrics line, or None if the line is not one (a power cut can leave a block of zeros)."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None
