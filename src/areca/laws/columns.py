"""Which column is which quantity, and its numbers.

A quantity has one name and one unit here, whatever a table calls it and counts it in. Every complaint names the file,
the row, the column and the value.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.errors import DataError, closest
from areca.laws.formats import DOUBLED, Row, Table
from areca.laws.observations import QUANTITIES

LEAST, MOST = 1e-40, 1e40  # a number outside is a slip, and its products overflow


@dataclass(frozen=True)
class Quantity:
    """What a column can be. `positive`: zero and below are mistakes (its logarithm is taken)."""

    meaning: str
    positive: bool = True


# The quantities that laws are made of, in the units they have everywhere. Any other name may be mapped as well.
KNOWN: dict[str, Quantity] = {
    "n_params": Quantity("N, parameters without embeddings"),
    "n_tokens": Quantity("D, training tokens"),
    "flops": Quantity("C, training FLOPs of the whole run"),
    "loss": Quantity("held-out loss in nats a token"),
    "unique_tokens": Quantity("U, tokens in the data before any is repeated"),
    "steps": Quantity("S, updates"),
    "batch_tokens": Quantity("B, tokens a step"),
    "learning_rate": Quantity("peak learning rate"),
    "score": Quantity("a task's score, as a share of 1", positive=False),
    "context": Quantity("T, tokens in a sequence"),
    "n_params_total": Quantity("parameters with embeddings"),
    "flops_exact": Quantity("training FLOPs, every matrix product counted"),
    "flops_6nd": Quantity("6 N D"),
    "d_model": Quantity("the model's width"),
    "n_layers": Quantity("the number of blocks"),
    "b_crit": Quantity("critical batch size in tokens"),
    "seed": Quantity("of the initial parameters or of the order", positive=False),
}
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in QUANTITIES}  # the others have --columns NAME=COLUMN


def option(name: str) -> str:
    """How the command line names the column of a quantity."""
    return OPTIONS.get(name, f"--columns {name}=COLUMN")


def match(table: Table, names: Iterable[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """Quantity -> column, for those of `names` that the table has; DataError for a mapped column that it has not."""
    used: dict[str, str] = {}
    for name in dict.fromkeys([*names, *mapping]):
        column = mapping.get(name, "")
        wanted = column or name
        if wanted in table.available:
            if f"{DOUBLED}{wanted}" in table.columns:
                raise DataError(
                    f"{table.path} has more than one column {wanted!r}; rename one (its columns: {table.listed})."
                )
            used[name] = wanted
        elif column:
            raise DataError(
                f"{table.path} has no column {column!r}{closest(column, table.available)}; "
                f"its columns are {table.listed}."
            )
    taken = list(used.values())
    for name, column in used.items():
        if taken.count(column) > 1:
            raise DataError(f"column {column!r} of {table.path} is mapped twice, also as {name}; map each column once.")
    return used


def numbers(table: Table, column: str, name: str, *, gaps: bool = False) -> np.ndarray:
    """[n] the column as the quantity `name`; with `gaps` an empty cell is NaN, else DataError."""
    positive = KNOWN[name].positive if name in KNOWN else False
    return np.array([number(row, column, positive=positive, gaps=gaps) for row in table.rows], dtype=np.float64)


def labels(table: Table, column: str) -> tuple[str, ...]:
    """[n] the cells of a column as text; DataError where one is empty."""
    for row in table.rows:
        if row.cells.get(column) is None or not str(row.cells[column]).strip():
            raise DataError(f"{row.where} has no value in column {column!r}; fill it in or group by another column.")
    return tuple(str(row.cells[column]).strip() for row in table.rows)


def number(row: Row, column: str, *, positive: bool = True, gaps: bool = False) -> float:
    """The finite number in a cell, or DataError that names the place."""
    value = row.cells.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        if gaps:
            return math.nan
        raise DataError(f"{row.where} has no value in column {column!r}; fill it in or remove the row.")
    found = _parse(value)
    if found is None:
        raise DataError(f"{row.where} has {str(value)[:40]!r} in column {column!r}, which is not a number.")
    if not math.isfinite(found) or (positive and found <= 0):
        kind = "positive" if positive else "finite"
        raise DataError(f"{row.where} has {value} in column {column!r}; it must be a {kind} number.")
    if positive and not LEAST <= found <= MOST:
        raise DataError(f"{row.where} has {value} in column {column!r}; it must lie between {LEAST:g} and {MOST:g}.")
    return found


def _parse(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def derive(table: Table, values: dict[str, np.ndarray], described: dict[str, str]) -> list[str]:
    """Adds the one of N, D and C that is missing, where the others are there; returns what to say about it."""
    name = table.path.name
    given = {k for k in ("n_params", "n_tokens", "flops") if k in values}
    if given == {"n_params", "n_tokens"}:
        values["flops"], described["flops"] = 6 * values["n_params"] * values["n_tokens"], "6 N D"
        return [f"{name} has no FLOPs; C = 6 N D is used."]
    if given == {"n_params", "flops"}:
        values["n_tokens"], described["n_tokens"] = values["flops"] / (6 * values["n_params"]), "C / 6 N"
        return [f"{name} has no tokens; D = C / 6 N is used, which leaves out attention and embeddings."]
    if given == {"n_tokens", "flops"}:
        values["n_params"], described["n_params"] = values["flops"] / (6 * values["n_tokens"]), "C / 6 D"
        return [f"{name} has no parameters; N = C / 6 D is used, which counts attention and embeddings in."]
    return []
