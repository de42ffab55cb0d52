"""Files to rows: CSV, TSV, JSON, JSONL and Parquet, each row with the place it came from.

What a column means is decided in columns.py; here nothing is turned into a number.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from areca.errors import ConfigError, DataError, closest
from areca.files import not_json

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
DOUBLED = "\0"  # before a name in `columns` that the file has more than once: refused when it is the one wanted


class Row(NamedTuple):
    """One row: where it is ("runs.csv line 4"), what it holds, and what to call the run if not by the place."""

    where: str
    cells: dict[str, Any]
    label: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of one source. `known` where the columns are our own names in our own units, as of run directories."""

    path: Path
    columns: list[str]
    rows: list[Row]
    known: bool = False
    notes: list[str] = field(default_factory=list)
    advice: str = ""  # what to do where a quantity is missing, beside naming its column
    described: dict[str, str] = field(default_factory=dict)  # what a quantity is to be called, if not by its column

    @property
    def available(self) -> list[str]:
        """The columns' names, each once."""
        return list(dict.fromkeys(c for c in self.columns if not c.startswith(DOUBLED)))

    @property
    def listed(self) -> str:
        """The same for a message."""
        return ", ".join(map(repr, self.available))

    def having(self, mapping: Mapping[str, str]) -> dict[str, str]:
        """The part of a mapping, {quantity: column}, whose columns are here."""
        return {name: column for name, column in mapping.items() if column in self.available}

    def where(self, conditions: Iterable[str]) -> "Table":
        """The rows that meet "COLUMN=VALUE" and "COLUMN!=VALUE", compared as text; DataError when there is none."""
        rows, notes = self.rows, list(self.notes)
        conditions = list(conditions)
        for condition in conditions:
            column, sign, value = _condition(condition)
            if column not in self.available:
                near = closest(column, self.available)
                raise DataError(f"{self.path} has no column {column!r}{near}; its columns are {self.listed}.")
            there = dict.fromkeys(map(str, (_text(row.cells.get(column)) for row in rows)))
            rows = [row for row in rows if (_text(row.cells.get(column)) == value) == (sign == "=")]
            if not rows:
                few = ", ".join(map(repr, list(there)[:8]))
                raise DataError(f"{self.path} has no row where {condition}; its column {column!r} has {few}.")
        if conditions and len(rows) < len(self.rows):
            notes.append(
                f"{len(rows)} of {len(self.rows)} rows of {self.path.name} are taken: {', '.join(conditions)}."
            )
        return replace(self, rows=rows, notes=notes)


def _condition(condition: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"\s*([^=!]+?)\s*(!?=)\s*(.*?)\s*", condition)
    if match is None:
        raise ConfigError(f"--where is {condition!r}; write it as COLUMN=VALUE or COLUMN!=VALUE.")
    return match[1], match[2], match[3]


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def read_table_file(path: Path) -> Table:
    """The rows of a file; DataError when it is no table."""
    if not path.exists():
        raise DataError(f"{path} does not exist; give run directories, a ladder or a table.")
    columns, rows = _read(path)
    if not rows:
        raise DataError(f"{path} has no rows.")
    return Table(path, columns, rows)


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
        return list(dict.fromkeys(k for row in rows for k in row.cells)), rows
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
            rows.append(Row(where, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise DataError(f"{path} is not a table ({error}).") from None
    duplicates = sorted({name for name in header if header.count(name) > 1})
    # A column named twice is harmless until it is the one wanted.
    return [*header, *(f"{DOUBLED}{name}" for name in duplicates)], rows


def _json_rows(path: Path, text: str, suffix: str) -> Iterator[Row]:
    if suffix == ".json":
        values = _parsed(text, str(path))
        _refuse_own(path, values)
        lines = [(f"{path} row {i}", v) for i, v in enumerate(values if isinstance(values, list) else [values], 1)]
    else:
        places = ((f"{path} line {i}", v) for i, v in enumerate(text.split("\n"), 1) if v.strip())
        lines = [(where, _parsed(v, where)) for where, v in places]
    for where, value in lines:
        if not isinstance(value, dict):
            raise DataError(f"{where} is {str(value)[:40]!r}, not an object with named columns.")
        yield Row(where, value)


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # Of a whole file the error tells the line, of one line of many only the column.
        said = str(error) if "\n" in text.strip() else f"{error.msg}, column {error.colno}"
        raise DataError(f"{where} is not valid JSON ({said}).") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not valid JSON ({not_json(error)}).") from None


def _refuse_own(path: Path, values: Any) -> None:
    """DataError for a law.json or a plan.json, which hold no table of runs."""
    if not isinstance(values, dict):
        return
    if "fingerprint" in values and {"parametric", "forms"} & set(values):
        raise DataError(
            f"{path} is a law that `areca fit` wrote, and no table of runs: plan from it, `areca plan {path} --flops "
            "C`, or fit what it was fitted to."
        )
    if {"best", "budget_flops", "predicted_loss"} <= set(values):
        raise DataError(
            f"{path} is a plan, and no table of runs: show it, `areca report {path}`, or write its run with `areca "
            "plan ... --config-out run.json` and train that."
        )


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
        Row(f"{path} row {i + 1}", dict(zip(names, cells, strict=True)))
        for i, cells in enumerate(zip(*columns, strict=True))
    ]
    return [*names, *(f"{DOUBLED}{name}" for name in {n for n in names if names.count(n) > 1})], rows
