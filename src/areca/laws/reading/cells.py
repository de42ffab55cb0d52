"""A cell to a number: 7e9, 1.3B and 1,024 where they can only mean one thing, else a sentence that names the place."""

import math
import re
from typing import Any

import numpy as np

from areca.errors import DataError
from areca.laws.reading.formats import Row, Table

LEAST, MOST = 1e-40, 1e40  # a number outside is a slip, and its products overflow
SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_SCALED = re.compile(r"([0-9.]+)\s?([kmbt])", re.IGNORECASE)
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?|[1-9]\d{0,2}(?:[ _\u202f\u00a0]\d{3})+")


def numbers(table: Table, column: str, *, count: bool = False, positive: bool = True, gaps: bool = False) -> np.ndarray:
    """[n] the numbers of a column, as `number` reads each."""
    found = [number(row, column, count=count, positive=positive, gaps=gaps) for row in table.rows]
    return np.array(found, dtype=np.float64)


def number(row: Row, column: str, *, count: bool = False, positive: bool = True, gaps: bool = False) -> float:
    """The finite number in a cell, or DataError that names the place.

    `count`: of parameters, tokens or steps, where 1.3B and 1,024 have one meaning. `positive`: zero and below are
    mistakes. `gaps`: an empty cell is NaN, and so is NaN.
    """
    value = row.cells.get(column)
    if empty(value):
        if gaps:
            return math.nan
        raise DataError(
            f"{row.where} has no value in column {column!r}; fill it in or leave such rows out (--where '{column}!=')."
        )
    found = parse(value, count)
    if gaps and found is not None and math.isnan(found):
        return math.nan
    if found is None:
        shown = str(value).strip()[:40]
        if _THOUSANDS.fullmatch(shown) or _SCALED.fullmatch(shown):
            raise DataError(
                f"{row.where} has {shown!r} in column {column!r}, which can be read in two ways; "
                "write it with a point and without marks between thousands."
            )
        raise DataError(f"{row.where} has {shown!r} in column {column!r}, which is not a number; correct it.")
    if not math.isfinite(found) or (positive and found <= 0):
        kind = "positive" if positive else "finite"
        raise DataError(f"{row.where} has {value} in column {column!r}; it must be a {kind} number.")
    if positive and not LEAST <= found <= MOST:
        raise DataError(f"{row.where} has {value} in column {column!r}; it must lie between {LEAST:g} and {MOST:g}.")
    return found


def labels(table: Table, column: str) -> tuple[str, ...]:
    """[n] the cells of a column as text; DataError where one is empty."""
    for row in table.rows:
        if empty(row.cells.get(column)):
            raise DataError(f"{row.where} has no value in column {column!r}; fill it in or group by another column.")
    return tuple(str(row.cells[column]).strip() for row in table.rows)


def empty(value: Any) -> bool:
    """Nothing, or the space that stands for it."""
    return value is None or (isinstance(value, str) and not value.strip())


def parse(value: Any, count: bool = False) -> float | None:
    """The number that a cell is, or None. Only a `count` may be abbreviated or have marks between its thousands."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and count:
        text = value.strip()
        if match := _SCALED.fullmatch(text):
            size = parse(match[1])
            return None if size is None else size * SCALES[match[2].lower()]
        if _THOUSANDS.fullmatch(text):
            value = re.sub("[^0-9.]", "", text)
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
