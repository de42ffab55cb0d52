"""Runs as Weights & Biases leaves them: its kinds of CSV export, and its directories.

The export of the runs table has a row for each run already. So has the one that its guide writes with the Python
interface, whose columns `summary` and `config` hold all of a run's last values and settings. The export of a panel has
a column for each run and metric ("RUN - eval/loss") and a row for each step: the last value of each is taken. A run's
directory has its last values in files/wandb-summary.json and its configuration in files/config.yaml.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.laws.reading.cells import empty
from areca.laws.reading.formats import Row, Table

SUMMARY, CONFIG = "wandb-summary.json", "config.yaml"
_SERIES = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<bound>__MIN|__MAX)?")


# Exports


def from_export(table: Table) -> Table:
    """The table as it is, or if it is an export of Weights & Biases, a row for each finished run."""
    if {"Name", "State"} <= set(table.available):
        return _finished(table)
    if {"name", "summary", "config"} <= set(table.available):
        return _unpacked(table)
    series = [c for c in table.available if (m := _SERIES.fullmatch(c)) and m["bound"]]
    return _last_values(table) if series else table


def _finished(table: Table) -> Table:
    """The finished runs of the runs table, called by their names."""
    rows = [
        row._replace(label=str(row.cells.get("Name") or row.where))
        for row in table.rows
        if str(row.cells.get("State")).strip().lower() == "finished"
    ]
    left = len(table.rows) - len(rows)
    if not rows:
        raise DataError(f"{table.path} has no run in State finished; export the runs table when some are.")
    said = f"{left} of {len(table.rows)} runs of {table.path.name} are not finished and are left out."
    return replace(table, rows=rows, notes=[*table.notes, *([said] if left else [])])


def _unpacked(table: Table) -> Table:
    """The table with the dictionaries of `summary` and `config` as columns, called by `name`."""
    rows = []
    for row in table.rows:
        cells = {k: v for k, v in row.cells.items() if k not in ("summary", "config")}
        cells |= _dictionary(row, "config") | _dictionary(row, "summary")
        rows.append(Row(row.where, cells, str(row.cells["name"])))
    return replace(table, columns=_columns(rows), rows=rows)


def _dictionary(row: Row, column: str) -> dict[str, Any]:
    """{dotted name: value} of a cell with a dictionary as Python writes it; what is not finite is left empty."""
    value = row.cells[column]
    if isinstance(value, str):
        try:
            value = ast.literal_eval(re.sub(r"(?<=[:\s,\[(])(nan|-?inf)(?=[,}\])])", "None", value))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise DataError(f"{row.where} has no dictionary in column {column!r}; export the runs table as CSV instead.")
    return _flat(value)


def _last_values(table: Table) -> Table:
    """A row for each run of a panel's export: the last value of each metric, and of the horizontal axis where it is."""
    axis = [c for c in table.available if not _SERIES.fullmatch(c)]
    runs: dict[str, dict[str, Any]] = {}
    for column in table.available:
        match = _SERIES.fullmatch(column)
        if match is None or match["bound"]:
            continue
        last = next((row for row in reversed(table.rows) if not empty(row.cells.get(column))), None)
        if last is None:
            continue
        cells = runs.setdefault(match["run"], {})
        cells[match["metric"]] = last.cells[column]
        for name in axis:
            cells.setdefault(name, last.cells[name])
    if not runs:
        raise DataError(f"{table.path} is a panel's export of Weights & Biases without values; export it again.")
    rows = [Row(f"{table.path} run {run}", cells, run) for run, cells in runs.items()]
    said = (
        f"{table.path.name} is a panel's export of Weights & Biases: the last values of its {len(runs)} runs are taken."
    )
    advice = "a panel's export has no parameter counts unless they were logged; export the runs table of the project"
    return Table(table.path, _columns(rows), rows, notes=[*table.notes, said], advice=advice)


# Directories


def holds_wandb(directory: Path) -> bool:
    """True for a run of Weights & Biases, its `files`, or a directory of runs such as `wandb`."""
    return any(True for _ in _runs(directory)) or any(True for _ in directory.glob("**/run-*.wandb"))


def read_wandb(directory: Path) -> Table:
    """A row for each run of a directory; DataError where none has a summary."""
    rows = []
    for files in _runs(directory):
        name = files.parent.name if files.name == "files" else files.name
        rows.append(Row(str(files / SUMMARY), _run(files), name))
    # Runs recorded offline have all in one binary file that only wandb reads.
    without = len({p.parent for p in directory.glob("**/run-*.wandb") if not (p.parent / "files" / SUMMARY).exists()})
    left = f"{without} of {len(rows) + without} runs of {directory} have no files/{SUMMARY}, as those recorded offline"
    if not rows:
        raise DataError(f"{left}; send them with `wandb sync` and export the runs table as CSV.")
    notes = [f"{left}; they are left out."] if without else []
    return Table(directory, _columns(rows), rows, notes=notes)


def _runs(directory: Path) -> Iterator[Path]:
    """The `files` directories with a summary, each once: "latest-run" is a link to another."""
    if (directory / SUMMARY).is_file():
        yield directory
        return
    for path in sorted(directory.glob(f"**/{SUMMARY}")):
        if not any(parent.is_symlink() for parent in path.parents if directory in parent.parents):
            yield path.parent


def _run(files: Path) -> dict[str, Any]:
    """What the summary and the configuration of a run say; a name that both have is the summary's."""
    return read_settings(files / CONFIG) | _flat(read_json_object(files / SUMMARY))


def read_settings(path: Path) -> dict[str, Any]:
    """{dotted name: value} of a YAML or JSON file of settings; {} where there is none."""
    if not path.exists():
        return {}
    if path.suffix == ".json":
        return _flat(read_json_object(path))
    import yaml

    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid YAML ({' '.join(str(error).split())[:80]}); leave the run out.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise DataError(f"{path} is no table of settings; leave the run out.")
    # Weights & Biases wraps each setting as {"value": ..., "desc": ...} and adds its own.
    plain = {
        str(k): v["value"] if isinstance(v, dict) and "value" in v and set(v) <= {"value", "desc"} else v
        for k, v in values.items()
        if k not in ("_wandb", "wandb_version")
    }
    return _flat(plain)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, where infinities and NaN may stand as Python writes them."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid JSON ({error}); leave the run out.") from None
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a JSON object; leave the run out.")
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{dotted name: value}; the numbers as PyYAML leaves them ("1e-3" is text to it) stay text for `cells`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = value
    return flat


def _columns(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row.cells))
