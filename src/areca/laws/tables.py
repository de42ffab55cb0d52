"""Reads observations: run directories, a ladder, or a CSV, TSV, JSON, JSONL or Parquet table with named columns.

What is not given is derived, and said: C from 6 N D, or D from C / 6 N, or N from C / 6 D. Every complaint names the
file, the row and the column.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from areca.errors import DataError, closest
from areca.files import read_json
from areca.laws.observations import Observations
from areca.laws.sweeps import best_rates

FlopsKind = Literal["exact", "6nd"]
Rates = Literal["best", "all"]
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
BUDGET = "budget_flops"
LADDER, QUICKSTART = "ladder.json", "quickstart.json"
LEAST, MOST = 1e-40, 1e40  # a number outside is a slip, and its products overflow
Row = tuple[str, dict[str, Any]]  # where it is ("runs.csv line 4"), column -> value


def load(
    paths: Iterable[Path | str],
    *,
    n_params: str = "",
    n_tokens: str = "",
    flops: str = "",
    loss: str = "",
    flops_kind: FlopsKind = "exact",
    rates: Rates = "best",
    fit_first: bool = False,
) -> Observations:
    """The observations of every path, together.

    A path is a directory of runs, as `run_directories` reads it, or a table.
    `n_params`, `n_tokens`, `flops` and `loss` name a table's columns; by default they are called so. Of a run
    directory's two FLOPs `flops_kind` takes the exact ones or 6 N D. Of a ladder's sweep of learning rates `rates`
    takes the best of each size and budget, or all. DataError says which file, row and column can't be used; with
    `fit_first` it sends whoever has to name a column to `areca fit`, having no options for that.
    """
    mapping = {"n_params": n_params, "n_tokens": n_tokens, "flops": flops, "loss": loss}
    parts = []
    for path in map(Path, paths):
        if path.is_dir():
            parts.append(_runs(path, flops_kind, rates))
        else:
            parts.append(_table(path, mapping, fit_first))
    if not parts:
        raise DataError("there is nothing to fit: give run directories, a ladder or a table.")
    return parts[0] if len(parts) == 1 else _join(parts)


def _join(parts: list[Observations]) -> Observations:
    rows = [row for part in parts for row in part.to_dicts()]
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    columns = {k: v for part in reversed(parts) for k, v in part.columns.items()}
    return Observations.from_dicts(rows, notes, columns)


# Run directories


def _runs(directory: Path, kind: FlopsKind, rates: Rates) -> Observations:
    found, missing = run_directories(directory)
    if not found:
        raise DataError(
            f"{directory} holds no finished run (no result.json in it or in the directories below); "
            "train first, or give a table."
        )
    key = "flops_exact" if kind == "exact" else "flops_6nd"
    found, notes = best_rates(found) if rates == "best" else (found, [])
    rows, names = [], {"n_params": "n_params", "n_tokens": "n_tokens", "flops": key, "loss": "loss"}
    for path, budget in found:
        where = str(path / "result.json")
        result = read_json(path / "result.json")
        if not isinstance(result, dict):
            raise DataError(f"{where} is not the result of a run.")
        row: dict[str, Any] = {"label": path.name}
        for name, column in names.items():
            row[name] = _number(result, column, where)
        budget = budget if budget is not None else result.get(BUDGET)
        if budget is not None:
            row[BUDGET] = _number({BUDGET: budget}, BUDGET, where)
        rows.append(row)
    notes += _families(directory, found)
    if missing:
        have = "1 run has" if len(missing) == 1 else f"{len(missing)} runs have"
        left = "is" if len(missing) == 1 else "are"
        notes.append(f"{have} no result yet and {left} left out: {', '.join(sorted(missing)[:5])}.")
    said = "exact training FLOPs" if kind == "exact" else "6 N D"
    return Observations.from_dicts(rows, tuple(notes), {**names, "flops": f"{key} ({said})"})


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


# Tables


def _table(path: Path, mapping: dict[str, str], fit_first: bool) -> Observations:
    if not path.exists():
        raise DataError(f"{path} does not exist; give run directories, a ladder or a table.")
    columns, rows = _read(path)
    if not rows:
        raise DataError(f"{path} has no rows.")
    used = _columns(path, columns, mapping, fit_first)
    values: dict[str, np.ndarray] = {}
    for name, column in used.items():
        values[name] = np.array([_number(row, column, where) for where, row in rows])
    notes, described = _derive(path, values, dict(used))
    budget = np.array([_number(row, BUDGET, where) for where, row in rows]) if BUDGET in columns else None
    notes += _questions(path, values)
    return Observations(
        values["n_params"], values["n_tokens"], values["flops"], values["loss"],
        budget, tuple(where for where, _ in rows), tuple(notes), described,
    )  # fmt: skip


def _read(path: Path) -> tuple[list[str], list[Row]]:
    """(column names, rows with their places)."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet(path)
    if suffix not in TABLES:
        raise DataError(f"{path} is not a table: give a file that ends in {', '.join(TABLES)}, or a directory of runs.")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8, so it can't be read as a {suffix} table.") from None
    if not text.strip():
        raise DataError(f"{path} is empty.")
    if "\0" in text:
        raise DataError(f"{path} holds binary data, so it can't be read as a {suffix} table.")
    if suffix in (".json", ".jsonl"):
        rows = list(_json_rows(path, text, suffix))
        return list(dict.fromkeys(k for _, row in rows for k in row)), rows
    return _csv(path, text, "\t" if suffix == ".tsv" else None)


def _csv(path: Path, text: str, delimiter: str | None) -> tuple[list[str], list[Row]]:
    head = text.splitlines()[0]
    if delimiter is None:
        delimiter = max(",;\t", key=head.count)
    reader = csv.reader(text.splitlines(), delimiter=delimiter)
    try:
        header = [name.strip() for name in next(reader)]
        rows = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path} line {reader.line_num}"
            if len(cells) != len(header):
                raise DataError(f"{where} has {len(cells)} cells where the header names {len(header)} columns.")
            rows.append((where, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise DataError(f"{path} is not a table ({error}).") from None
    duplicates = sorted({name for name in header if header.count(name) > 1})
    # A column named twice is harmless until it is the one wanted: `_columns` refuses it then.
    return [*header, *(f"\0{name}" for name in duplicates)], rows


def _json_rows(path: Path, text: str, suffix: str) -> Iterator[Row]:
    try:
        if suffix == ".json":
            values = json.loads(text)
            lines = [(f"{path} row {i}", v) for i, v in enumerate(values if isinstance(values, list) else [values], 1)]
        else:
            lines = [(f"{path} line {i}", json.loads(v)) for i, v in enumerate(text.splitlines(), 1) if v.strip()]
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not valid {suffix[1:].upper()} ({error}).") from None
    for where, value in lines:
        if not isinstance(value, dict):
            raise DataError(f"{where} is {str(value)[:40]!r}, not an object with named columns.")
        yield where, value


def _parquet(path: Path) -> tuple[list[str], list[Row]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path} is not a Parquet file ({str(error).splitlines()[0]}).") from None
    names = table.column_names
    columns = [table.column(i).to_pylist() for i in range(table.num_columns)]
    rows = [
        (f"{path} row {i + 1}", dict(zip(names, cells, strict=True)))
        for i, cells in enumerate(zip(*columns, strict=True))
    ]
    return [*names, *(f"\0{name}" for name in {n for n in names if names.count(n) > 1})], rows


def _columns(path: Path, columns: list[str], mapping: dict[str, str], fit_first: bool) -> dict[str, str]:
    """Quantity -> column, for the loss and at least two of N, D and C."""
    available = [c for c in columns if not c.startswith("\0")]
    listed = ", ".join(map(repr, dict.fromkeys(available)))
    used: dict[str, str] = {}
    for name, column in mapping.items():
        wanted = column or name
        if wanted in available:
            if f"\0{wanted}" in columns:
                raise DataError(f"{path} has more than one column {wanted!r}; rename one (its columns: {listed}).")
            used[name] = wanted
        elif column:
            raise DataError(f"{path} has no column {column!r}{closest(column, available)}; its columns are {listed}.")
    taken = list(used.values())
    for name, column in used.items():
        if taken.count(column) > 1:
            raise DataError(f"column {column!r} of {path} is mapped twice, also as {name}; map each column once.")
    if "loss" not in used:
        how = _fit_it(path, "--loss") if fit_first else "name it with --loss"
        raise DataError(f"{path} has no column 'loss'; {how} (its columns: {listed}).")
    given = [name for name in ("n_params", "n_tokens", "flops") if name in used]
    if len(given) < 2:
        how = "name them with --n-params, --n-tokens and --flops"
        if fit_first:
            how = _fit_it(path, *(f"--{n.replace('_', '-')}" for n in ("n_params", "n_tokens") if n not in given))
        raise DataError(
            f"{path} needs two of N, D and C and has {given[0] if given else 'none'}; {how} (its columns: {listed})."
        )
    return used


def _fit_it(path: Path, *options: str) -> str:
    named = " ".join(f"{option} COLUMN" for option in options)
    return f"fit it first, `areca fit {path} {named} --out law.json`, and plan from law.json"


def _derive(path: Path, values: dict[str, np.ndarray], described: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    if "flops" not in values:
        values["flops"] = 6 * values["n_params"] * values["n_tokens"]
        described["flops"] = "6 N D"
        return [f"{path.name} has no FLOPs; C = 6 N D is used."], described
    if "n_tokens" not in values:
        values["n_tokens"] = values["flops"] / (6 * values["n_params"])
        described["n_tokens"] = "C / 6 N"
        return [
            f"{path.name} has no tokens; D = C / 6 N is used, which leaves out attention and embeddings."
        ], described
    if "n_params" not in values:
        values["n_params"] = values["flops"] / (6 * values["n_tokens"])
        described["n_params"] = "C / 6 D"
        return [
            f"{path.name} has no parameters; N = C / 6 D is used, which counts attention and embeddings in."
        ], described
    return [], described


def _questions(path: Path, values: dict[str, np.ndarray]) -> list[str]:
    """Doubts about units, from the ratio of C to 6 N D."""
    ratio = float(np.median(values["flops"] / (6 * values["n_params"] * values["n_tokens"])))
    if ratio < 1e-12:
        return [f"C is {ratio:.1e} of 6 N D in {path.name}: are its FLOPs in PF-days (8.64e19 FLOPs)?"]
    if not 0.3 < ratio < 30:
        return [f"C is {ratio:.2g} times 6 N D in {path.name}: check the units of its columns."]
    return []


def _number(row: dict[str, Any], column: str, where: str) -> float:
    """The positive finite number in a cell, or DataError that names the place."""
    value = row.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise DataError(f"{where} has no value in column {column!r}; fill it in or remove the row.")
    try:
        if isinstance(value, bool):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError):
        raise DataError(f"{where} has {str(value)[:40]!r} in column {column!r}, which is not a number.") from None
    if not math.isfinite(number) or number <= 0:
        raise DataError(f"{where} has {value} in column {column!r}; it must be a positive number.")
    if not LEAST <= number <= MOST:
        raise DataError(f"{where} has {value} in column {column!r}; it must lie between {LEAST:g} and {MOST:g}.")
    return number
