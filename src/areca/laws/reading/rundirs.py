"""Run directories as rows: what run.json, result.json and a ladder's record say of each run, under our own names.

A directory is a run, a ladder, a quickstart, or holds any of these. Units are those of
`areca.laws.reading.columns.KNOWN`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from areca.errors import DataError
from areca.files import read_json
from areca.laws.reading.formats import Row, Table
from areca.laws.reading.sweeps import best_rates

FlopsKind = Literal["exact", "6nd"]
Rates = Literal["best", "all"]
BUDGET = "budget_flops"
LADDER, QUICKSTART = "ladder.json", "quickstart.json"


def read_runs(directory: Path, kind: FlopsKind, rates: Rates) -> Table:
    """A row for each finished run of a directory; DataError where there is none.

    `flops` are the exact ones or 6 N D, as `kind` says; the two stand there as flops_exact and flops_6nd as well.
    """
    found, missing = run_directories(directory)
    if not found:
        raise DataError(
            f"{directory} holds no finished run (no result.json in it or in the directories below); "
            "train first, or give a table."
        )
    found, notes = best_rates(found) if rates == "best" else (found, [])
    rows = [_run(path, budget, f"flops_{kind}") for path, budget in found]
    notes += _families(directory, found)
    if missing:
        have = "1 run has" if len(missing) == 1 else f"{len(missing)} runs have"
        left = "is" if len(missing) == 1 else "are"
        notes.append(f"{have} no result yet and {left} left out: {', '.join(sorted(missing)[:5])}.")
    said = "exact training FLOPs" if kind == "exact" else "6 N D"
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return Table(directory, columns, rows, known=True, notes=notes, described={"flops": f"flops_{kind} ({said})"})


def _run(path: Path, budget: float | None, flops: str) -> Row:
    """What is known of one run. Numbers of result.json and labels that have no other meaning here keep their names."""
    where = path / "result.json"
    result = read_json(where)
    if not isinstance(result, dict):
        raise DataError(f"{where} is not the result of a run.")
    run = read_json(path / "run.json") if (path / "run.json").exists() else {}
    config = _mapping(_mapping(run).get("config"))
    cells: dict[str, Any] = {k: v for k, v in result.items() if v is None or isinstance(v, int | float | str)}
    cells |= _settings(config, result)
    cells |= {k: v for k, v in _mapping(result.get("labels")).items() if k != "name"}
    cells |= {"flops": result.get(flops), "run": path.name}
    if budget is not None:
        cells[BUDGET] = budget
    return Row(str(where), cells, path.name)


def _settings(config: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's configuration what laws are fitted to.

    `batch_tokens` is the batch, or where it was ramped the mean, tokens over steps; `learning_rate` is the peak.
    """
    model, data = _mapping(config.get("model")), _mapping(config.get("data"))
    known = {
        "d_model": model.get("d_model"),
        "n_layers": model.get("n_layers"),
        "vocab_size": model.get("vocab_size"),
        "context": data.get("context"),
        "learning_rate": _mapping(config.get("optimizer")).get("learning_rate"),
        "seed": config.get("seed"),
    }
    ramp = _mapping(config.get("batch")).get("ramp")
    if isinstance(ramp, list) and len(ramp) == 1 and isinstance(data.get("context"), int):
        known["batch_tokens"] = ramp[0][-1] * data["context"]
    elif _positive(result.get("steps")) and _positive(result.get("n_tokens")):
        known["batch_tokens"] = result["n_tokens"] / result["steps"]
    return {name: value for name, value in known.items() if value is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def run_directories(directory: Path) -> tuple[list[tuple[Path, float | None]], list[str]]:
    """([(run directory, its budget)], names of runs without a result) of what a directory holds.

    It is a run, a ladder, a quickstart (of which the ladder's runs count and not the planned one, which their law is to
    predict), or a directory of any of these, directly or under `runs`.
    """
    if (directory / "result.json").exists():
        return [(directory, None)], []
    if (directory / LADDER).exists():
        return _of_ladder(directory)
    if (directory / QUICKSTART).exists():
        return _of_ladder(directory / "ladder") if (directory / "ladder" / LADDER).exists() else ([], [])
    found: list[tuple[Path, float | None]] = []
    missing: list[str] = []
    for child in _children(directory):
        if (child / "result.json").is_file():
            found.append((child, None))
        elif _is_family(child):
            runs, without = run_directories(child)
            found += runs
            missing += without
        elif (child / "run.json").is_file():
            missing.append(child.name)
    return found, missing


def _children(directory: Path) -> list[Path]:
    return [p for parent in (directory, directory / "runs") if parent.is_dir() for p in sorted(parent.iterdir())]


def _is_family(directory: Path) -> bool:
    return (directory / LADDER).is_file() or (directory / QUICKSTART).is_file()


def _of_ladder(directory: Path) -> tuple[list[tuple[Path, float | None]], list[str]]:
    ladder = read_json(directory / LADDER)
    try:
        named = [(str(r["name"]), r.get(BUDGET), Path(r.get("path") or f"runs/{r['name']}")) for r in ladder["runs"]]
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{directory / LADDER} does not list the ladder's runs; make the ladder again.") from None
    found, missing = [], []
    for name, budget, path in named:
        tries = (directory / path, directory / "runs" / name, path)  # a ladder that was moved finds its runs
        at = next((p for p in tries if (p / "result.json").exists()), None)
        if at is None:
            missing.append(name)
        else:
            found.append((at, budget))
    return found, missing


def _families(directory: Path, found: list[tuple[Path, float | None]]) -> list[str]:
    """Which runs were taken and which left, in sentences, where the directory alone does not tell."""
    if (directory / "result.json").exists() or (directory / LADDER).exists():
        return []
    if (directory / QUICKSTART).exists():
        left = ""
        if (directory / "verify" / "result.json").exists():
            left = f", and the planned run {directory / 'verify'} is left out, as their law is to predict it"
        return [f"{directory} is a quickstart: the {_runs_words(len(found))} of its ladder are taken{left}."]
    families = [child for child in _children(directory) if _is_family(child)]
    if not families:
        return []
    names = ", ".join(str(f / "ladder" if (f / QUICKSTART).is_file() else f) for f in families)
    inside = sum(any(path.is_relative_to(f) for f in families) for path, _ in found)
    own = f"{_runs_words(len(found) - inside)} of {directory} and " if len(found) > inside else ""
    return [f"{own}{_runs_words(inside)} of {names} are taken together."]


def _runs_words(count: int) -> str:
    return f"{count} run{'s' if count != 1 else ''}"
