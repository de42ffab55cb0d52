"""Rows that are not one finished run each: exact duplicates, repeats of a run, points along its training curve."""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from areca.errors import DataError
from areca.laws.reading.cells import parse
from areca.laws.reading.columns import Found
from areca.laws.reading.formats import Table

Duplicates = Literal["check", "keep", "drop", "refuse"]
MANY_DUPLICATES = 0.10  # of the rows: beyond, intervals are too narrow by more than they can be read
CURVE = 5  # rows of one run or of one size, at the least, that can be points of a curve
NEARLY_NEW = 4  # epochs up to which repeated tokens are worth nearly as much as new ones (Muennighoff et al. 2023)
ONCE = 1.01  # epochs of a run whose D is rounded to whole batches
RUN_NAMES = {"run", "runid", "runname", "id", "name", "experiment", "series", "trial"}


def check_duplicates(
    columns: Sequence[np.ndarray], label: Sequence[str], what: str, how: Duplicates
) -> tuple[np.ndarray, list[str]]:
    """(indices of the rows to take, what to say) of rows that are the same in every one of `columns`, each [n]."""
    keys = np.nan_to_num(np.stack(columns, axis=1), nan=-1.0)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    earlier = first[inverse.reshape(-1)]
    repeated = np.flatnonzero(earlier != np.arange(len(keys)))
    everything = np.arange(len(keys))
    if not repeated.size or how == "keep":
        return everything, []
    i = int(repeated[0])
    rows = f"{repeated.size} of {len(keys)} rows repeat others in {what}, as {label[i]} does {label[earlier[i]]}"
    if how == "drop":
        return np.setdiff1d(everything, repeated), [f"{rows}; they are left out, as asked."]
    if how == "refuse" or repeated.size > MANY_DUPLICATES * len(keys):
        raise DataError(f"{rows}, so every interval would be too narrow; say --duplicates drop, or keep.")
    return everything, [f"{rows}, which makes every interval too narrow; --duplicates drop leaves them out."]


def repeated_data(table: Table, found: Found) -> list[str]:
    """A warning where rows read their unique tokens more than once: L(N, D) takes every token for new."""
    epochs = found.values["n_tokens"] / found.values["unique_tokens"]
    again, often = int((epochs > ONCE).sum()), int((epochs > NEARLY_NEW * ONCE).sum())
    if not again:
        return []
    return [
        f"{again} of {len(epochs)} rows of {table.path.name} repeat their unique tokens, {often} of them more than "
        f"{NEARLY_NEW} times (up to {np.nanmax(epochs):.3g}), and L(N, D) takes every token for new: fit --form "
        "data-constrained."
    ]


def repeats(table: Table, found: Found) -> list[str]:
    """What to say of rows with the same N, D and settings and different losses: repeats, such as seeds."""
    same = [found.values["n_params"], found.values["n_tokens"]]
    same += [v for k, v in found.values.items() if k not in ("n_params", "n_tokens", "loss", "score", "seed")]
    loss = found.values["loss"]
    sets = [rows for rows in _sets(np.nan_to_num(np.stack(same, axis=1), nan=-1.0)) if len(set(loss[rows])) > 1]
    if not sets:
        return []
    count = sum(map(len, sets))
    first, second = (table.rows[int(i)].where for i in sets[0][:2])
    seen = (
        f"{count} rows of {table.path.name} have the same N and D as others and another loss, as {first} and "
        f"{second.removeprefix(str(table.path)).strip()}"
    )
    if kinds := _kinds(table, found, sets):
        names = " and ".join(map(repr, kinds))
        return [f"{seen}, and differ in {names}: one law through them all is an average (--where takes one kind)."]
    return [f"{seen}; they are taken as repeats of a run (seeds)."]


def _kinds(table: Table, found: Found, sets: list[np.ndarray]) -> list[str]:
    """Columns of words in which rows of a set differ and which are no names of runs: a corpus, a recipe."""
    kinds = []
    for column in table.available:
        words = [str(row.cells.get(column)).strip() for row in table.rows]
        few = 1 < len(set(words)) <= len(words) / 2
        if column in found.used.values() or not few or all(parse(word) is not None for word in set(words)):
            continue
        if any(len({words[i] for i in rows}) > 1 for rows in sets):
            kinds.append(column)
    return kinds[:3]


def curve_question(table: Table, found: Found) -> list[str]:
    """A question where rows look like points along a training curve: L(N, D) is about finished runs.

    They do when a column of runs has the same name in many rows that differ in D, or when D rises in even steps at each
    N. (Chinchilla's approach 3 wants runs whose learning rate has decayed at their own D; section 3.)
    """
    n, d = found.values["n_params"], found.values["n_tokens"]
    column = next((c for c in table.available if re.sub("[^a-z]", "", c.lower()) in RUN_NAMES), "")
    why = "D rises in even steps"
    if column:
        names = np.array([str(row.cells.get(column)) for row in table.rows])
        by_name = [rows for rows in _sets(names) if len(set(n[rows])) == 1 and len(set(d[rows])) == len(rows)]
        curves = [rows for rows in by_name if len(rows) >= CURVE]
        if sum(map(len, curves)) > len(n) / 2:
            return [_asked(table, curves[0], f"have the same {column!r}")]
    curves = [rows for rows in _sets(n) if len(rows) >= 2 * CURVE and _even(d[rows])]
    if sum(map(len, curves)) > len(n) / 2:
        return [_asked(table, curves[0], f"have one N, and {why}")]
    return []


def _sets(keys: np.ndarray) -> list[np.ndarray]:
    """The indices of the rows that are equal, set by set."""
    _, inverse, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    return np.split(np.argsort(inverse.reshape(-1), kind="stable"), np.cumsum(counts)[:-1])


def _asked(table: Table, rows: np.ndarray, why: str) -> str:
    where = table.rows[int(rows[0])].where
    return (
        f"{table.path.name} looks like training curves ({len(rows)} rows from {where} on {why}): L(N, D) "
        "wants finished runs, one row each, whose learning rate has decayed at their own D."
    )


def _even(d: np.ndarray) -> bool:
    steps = np.diff(np.unique(d))
    return len(steps) >= CURVE and bool(np.ptp(steps) < 0.02 * steps.mean())
