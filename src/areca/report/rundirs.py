"""Run directories as the report reads them, finished or not, ours or another tool's."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import read_jsonl
from areca.report.values import an_object, number, objects, optional_object, positive

# The columns of metrics.jsonl that the page draws.
METRICS = (
    "tokens", "loss", "grad_norm", "update_norm", "param_norm", "learning_rate", "batch", "tokens_per_second", "mfu",
)  # fmt: skip
RUN_FILES = ("run.json", "result.json", "metrics.jsonl", "events.jsonl")


@dataclass
class Run:
    """One run directory. `metrics` holds one list a column, all of one length; a value that is not finite is None."""

    name: str
    path: Path
    info: dict[str, Any] | None  # run.json
    result: dict[str, Any] | None  # result.json; None until the run has finished
    metrics: dict[str, list[float | None]]
    events: list[dict[str, Any]]
    budget_flops: float | None = None

    def number(self, *keys: str) -> float | None:
        """The first of `keys` that result.json, or else run.json's counts, has as a finite number."""
        for source in (self.result, (self.info or {}).get("counts")):
            for key in keys:
                value = number(source, key)
                if value is not None:
                    return value
        return None

    @property
    def labels(self) -> dict[str, Any]:
        """What the family of a run wrote into its result."""
        return an_object(self.result, "labels")


def read_run(path: Path, name: str | None = None, budget_flops: float | None = None) -> Run:
    """Reads one run directory, finished or not."""
    result = optional_object(path / "result.json")
    info = optional_object(path / "run.json")
    for source in (result, (result or {}).get("labels"), (info or {}).get("labels")):
        if budget_flops is None:
            budget_flops = positive(source, "budget_flops")
    return Run(name or path.name, path, info, result, _read_metrics(path), _read_events(path), budget_flops)


def is_run(path: Path) -> bool:
    """Whether a directory holds any file of a run."""
    return any((path / name).is_file() for name in RUN_FILES)


def read_ladder(root: Path) -> tuple[list[Run], list[str]]:
    """The runs of ladder.json that have started, and a sentence for each that has not or has not finished."""
    ladder = optional_object(root / "ladder.json") or {}
    runs: list[Run] = []
    missing: list[str] = []
    for entry in objects(ladder.get("runs")):
        name = str(entry.get("name", "?"))
        path = root / "runs" / name
        if not path.is_dir() and isinstance(entry.get("path"), str):
            path = root / entry["path"]
        if not is_run(path):
            missing.append(f"Run {name} of the ladder has not started.")
            continue
        run = read_run(path, name, positive(entry, "budget_flops"))
        if run.result is None:
            diverged = bool(run.events) and run.events[-1].get("event") == "not_finite"
            missing.append(f"Run {name} of the ladder {'diverged' if diverged else 'has not finished'}.")
        runs.append(run)
    return runs, missing


def runs_under(path: Path) -> tuple[list[Run], list[str]]:
    """The run that a directory is, the ladder's runs, or the runs and ladders one level below; no runs if none are."""
    if is_run(path):
        return [read_run(path)], []
    if (path / "ladder.json").is_file():
        return read_ladder(path)
    runs: list[Run] = []
    missing: list[str] = []
    for child in sorted(child for child in path.iterdir() if child.is_dir()):
        if is_run(child):
            runs.append(read_run(child))
        elif (child / "ladder.json").is_file():
            of, unfinished = read_ladder(child)
            runs, missing = runs + of, missing + unfinished
    return runs, missing


def distinct(runs: Iterable[Run]) -> list[Run]:
    """The runs with each directory once and with names that differ, by adding the parent's name where needed."""
    unique = {run.path.resolve(): run for run in runs}
    names: dict[str, int] = {}
    for run in unique.values():
        names[run.name] = names.get(run.name, 0) + 1
    for path, run in unique.items():
        if names[run.name] > 1 or not run.name:
            run.name = f"{path.parent.name}/{path.name}"
    return list(unique.values())


def _read_metrics(path: Path) -> dict[str, list[float | None]]:
    columns: dict[str, list[float | None]] = {name: [] for name in METRICS}
    if not (path / "metrics.jsonl").exists():
        return columns
    for line, row in enumerate(read_jsonl(path / "metrics.jsonl"), 1):
        if not isinstance(row, dict):
            raise DataError(f"{path / 'metrics.jsonl'} line {line} is not an object of metrics.")
        for name, column in columns.items():
            column.append(number(row, name))
    return columns


def _read_events(path: Path) -> list[dict[str, Any]]:
    if not (path / "events.jsonl").exists():
        return []
    return objects(list(read_jsonl(path / "events.jsonl")))
