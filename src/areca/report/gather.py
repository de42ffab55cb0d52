"""Reads what a report is made of, from files only: run directories, ladders, a quickstart's directory.

A part that is not there is None and is said in the page; a file that is there and damaged is a DataError. Nothing
here knows how the files were made, so half-finished work and other tools' run directories are read as well.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import read_json, read_jsonl

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


@dataclass
class Gathered:
    """Everything found under the paths of one report."""

    kind: str  # "quickstart", "ladder" or "runs"
    root: Path
    runs: list[Run]  # ladder's runs or the runs given; without the verifying run
    verify: Run | None = None
    law: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    store: dict[str, Any] | None = None
    samples: list[dict[str, Any]] | None = None
    quickstart: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)  # sentences

    @property
    def all_runs(self) -> list[Run]:
        """The runs, the verifying one last."""
        return [*self.runs, self.verify] if self.verify else list(self.runs)


def gather(paths: Sequence[Path | str]) -> Gathered:
    """Reads a quickstart's directory, a ladder's, or any list of run directories (or directories that hold some).

    DataError names a path that is none of these, and a file that is damaged.
    """
    found = [Path(path) for path in paths]
    if not found:
        raise DataError("a report needs at least one directory: a quickstart's, a ladder's or a run's.")
    for path in found:
        if not path.is_dir():
            what = "is not a directory" if path.exists() else "does not exist"
            raise DataError(f"{path} {what}; give the directory of a quickstart, a ladder or a run.")
    if len(found) == 1 and _is_quickstart(found[0]):
        return _gather_quickstart(found[0])
    if len(found) == 1 and (found[0] / "ladder.json").is_file():
        runs, missing = _gather_ladder(found[0])
        return Gathered("ladder", found[0], runs, law=optional_object(found[0] / "law.json"), missing=missing)
    runs = []
    for path in found:
        runs += _runs_under(path)
    return Gathered("runs", found[0], _distinct(runs))


def number(source: Any, key: str) -> float | None:
    """`source[key]` if `source` is an object and that is a finite number, else None."""
    value = source.get(key) if isinstance(source, dict) else None
    return finite(value)


def finite(value: Any) -> float | None:
    """`value` as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def positive(source: Any, key: str) -> float | None:
    """`source[key]` if that is a finite number above 0, else None: sizes, tokens, FLOPs, losses."""
    value = number(source, key)
    return value if value is not None and value > 0 else None


def json_ready(value: Any) -> Any:
    """A value read from JSON without the NaN and infinities that Python's reader lets through."""
    if isinstance(value, dict):
        return {k: json_ready(v) for k, v in value.items()}
    if isinstance(value, list):
        return [json_ready(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def pair(value: Any) -> tuple[float, float] | None:
    """A list of two finite numbers in order, or None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = finite(value[0]), finite(value[1])
    return None if low is None or high is None else (min(low, high), max(low, high))


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; anything else in it, or anything but a list, is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def at_least(stage: dict[str, Any]) -> bool:
    """Whether a stage took longer than is known: one of its sessions was killed, or it is not over."""
    return bool(stage.get("at_least") or stage.get("running"))


def optional_object(path: Path) -> dict[str, Any] | None:
    """A JSON file's object; None if there is no such file, DataError if it holds anything else."""
    if not path.exists():
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(
            f"{path} holds a JSON {type(value).__name__} where an object was expected; restore or remove it."
        )
    return value


def read_run(path: Path, name: str | None = None, budget_flops: float | None = None) -> Run:
    """Reads one run directory, finished or not."""
    result = optional_object(path / "result.json")
    info = optional_object(path / "run.json")
    for source in (result, (result or {}).get("labels"), (info or {}).get("labels")):
        if budget_flops is None:
            budget_flops = positive(source, "budget_flops")
    return Run(name or path.name, path, info, result, _read_metrics(path), _read_events(path), budget_flops)


def read_plan(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """plan.json with the chosen run's figures at its top level, whether it has them there or under `best`."""
    if value is None:
        return None
    best = value["best"] if isinstance(value.get("best"), dict) else {}
    plan = {
        k: best[k] for k in ("n_params", "n_tokens", "flops_exact", "flops_6nd", "predicted_loss") if k in best
    } | value
    plan.setdefault("interval_90", value.get("interval"))
    baseline = positive(value.get("baseline"), "loss")
    if baseline is not None:
        plan.setdefault("naive_baseline_loss", baseline)
    return plan


def _is_quickstart(path: Path) -> bool:
    if (path / "quickstart.json").is_file() or (path / "plan.json").is_file():
        return True
    return (path / "ladder" / "ladder.json").is_file() or (path / "store" / "store.json").is_file()


def _gather_quickstart(root: Path) -> Gathered:
    missing: list[str] = []

    def part(name: str, what: str) -> dict[str, Any] | None:
        value = optional_object(root / name)
        if value is None:
            missing.append(f"{what} ({name}) is not there yet.")
        return value

    store = part("store/store.json", "The token store")
    runs: list[Run] = []
    if (root / "ladder" / "ladder.json").is_file():
        runs, unfinished = _gather_ladder(root / "ladder")
        missing += unfinished
    else:
        missing.append("The ladder (ladder/ladder.json) is not there yet.")
    law = part("law.json", "The fitted law")
    plan = read_plan(part("plan.json", "The plan"))
    verify = None
    if _is_run(root / "verify"):
        verify = read_run(root / "verify", "verifying run")
        if verify.result is None:
            missing.append("The verifying run (verify/) has not finished.")
    else:
        missing.append("The verifying run (verify/) is not there yet.")
    samples = None
    if (root / "samples.json").exists():
        samples = objects(read_json(root / "samples.json"))
    else:
        missing.append("The samples (samples.json) are not there yet.")
    quickstart = part("quickstart.json", "The record of the quickstart")
    return Gathered("quickstart", root, runs, verify, law, plan, store, samples, quickstart, missing)


def _gather_ladder(root: Path) -> tuple[list[Run], list[str]]:
    ladder = optional_object(root / "ladder.json") or {}
    runs: list[Run] = []
    missing: list[str] = []
    for entry in objects(ladder.get("runs")):
        name = str(entry.get("name", "?"))
        path = root / "runs" / name
        if not path.is_dir() and isinstance(entry.get("path"), str):
            path = root / entry["path"]
        if not _is_run(path):
            missing.append(f"Run {name} of the ladder has not started.")
            continue
        run = read_run(path, name, positive(entry, "budget_flops"))
        if run.result is None:
            diverged = bool(run.events) and run.events[-1].get("event") == "not_finite"
            missing.append(f"Run {name} of the ladder {'diverged' if diverged else 'has not finished'}.")
        runs.append(run)
    return runs, missing


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in RUN_FILES)


def _runs_under(path: Path) -> list[Run]:
    if _is_run(path):
        return [read_run(path)]
    if (path / "ladder.json").is_file():
        return _gather_ladder(path)[0]
    children = sorted(child for child in path.iterdir() if child.is_dir() and _is_run(child))
    if not children:
        raise DataError(
            f"{path} holds no run: there is no {', '.join(RUN_FILES[:-1])} or {RUN_FILES[-1]} in it or one level below."
        )
    return [read_run(child) for child in children]


def _distinct(runs: Iterable[Run]) -> list[Run]:
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
