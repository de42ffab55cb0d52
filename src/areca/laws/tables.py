"""`load` and `load_columns`: what a law is fitted to, from run directories and tables of any tool.

What is not given is derived, and said: C from 6 N D, or D from C / 6 N, or N from C / 6 D.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from areca.errors import DataError, closest
from areca.laws import columns
from areca.laws.formats import Table, read_table_file
from areca.laws.observations import QUANTITIES, Observations
from areca.laws.rundirs import BUDGET, FlopsKind, Rates, read_runs
from areca.laws.rundirs import run_directories as run_directories  # areca.plan finds the runs of a law with it


@dataclass(frozen=True)
class Columns:
    """n runs with the quantities that a form asks for, for laws of other things than N, D, C and the loss."""

    values: dict[str, np.ndarray]  # name -> [n], float64; NaN only in those that were optional
    label: tuple[str, ...]
    group: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.label)


def load(
    paths: Iterable[Path | str],
    *,
    n_params: str = "",
    n_tokens: str = "",
    flops: str = "",
    loss: str = "",
    columns: Mapping[str, str] | None = None,
    group: str = "",
    flops_kind: FlopsKind = "exact",
    rates: Rates = "best",
    fit_first: bool = False,
) -> Observations:
    """The observations of every path, together.

    A path is a directory of runs, as `run_directories` reads it, or a table.
    `n_params`, `n_tokens`, `flops` and `loss` name a table's columns, `columns` those of other quantities ({name:
    column}); by default they are called so. `group` is a column of labels. Of a run directory's two FLOPs `flops_kind`
    takes the exact ones or 6 N D. Of a ladder's sweep of learning rates `rates` takes the best of each size and budget,
    or all. DataError says which file, row and column can't be used; with `fit_first` it sends whoever has to name a
    column to `areca fit`, having no options for that.
    """
    mapping = {"n_params": n_params, "n_tokens": n_tokens, "flops": flops, "loss": loss} | dict(columns or {})
    parts = [_observations(table, mapping, group, fit_first) for table in _tables(paths, flops_kind, rates)]
    return parts[0] if len(parts) == 1 else _join(parts)


def load_columns(
    paths: Iterable[Path | str],
    wanted: Sequence[str],
    mapping: Mapping[str, str],
    optional: Sequence[str] = (),
    *,
    group: str = "",
    flops_kind: FlopsKind = "exact",
    rates: Rates = "best",
) -> Columns:
    """The quantities `wanted` of every run, as float64; DataError where one is not there or a run lacks it.

    `mapping` is {quantity: a table's column}; without, a column is called as the quantity. Of `optional` those come
    that any path has, NaN where a run has none. A third of N, D and C is derived from the others, and said.
    """
    values: dict[str, list[np.ndarray]] = {name: [] for name in [*wanted, *optional]}
    label: list[str] = []
    groups: list[str] = []
    notes: list[str] = []
    for table in _tables(paths, flops_kind, rates):
        used = _match(table, [*wanted, *optional], mapping)
        lacks = [name for name in wanted if name not in used]
        # N, D and C are read where they can stand in for one that is wanted.
        derivable = set(lacks) <= {"n_params", "n_tokens", "flops"}
        if lacks and derivable:
            used = _match(table, [*wanted, *optional, "n_params", "n_tokens", "flops"], mapping)
        found = {n: columns.numbers(table, c, n, gaps=n not in wanted and n in optional) for n, c in used.items()}
        said = columns.derive(table, found, {}) if lacks and derivable else []
        if missing := [name for name in wanted if name not in found]:
            raise DataError(
                f"{table.path} has no column {missing[0]!r}{closest(missing[0], table.available)}; "
                f"name it with {columns.option(missing[0])} (its columns: {table.listed})."
            )
        for name, parts in values.items():
            parts.append(found.get(name, np.full(len(table.rows), np.nan)))
        label += [row.label or row.where for row in table.rows]
        groups += _group(table, group)
        notes += [*table.notes, *said]
    whole = {name: np.concatenate(parts) for name, parts in values.items()}
    there = {name: v for name, v in whole.items() if name in wanted or np.isfinite(v).any()}
    return Columns(there, tuple(label), tuple(groups), tuple(dict.fromkeys(notes)))


def _tables(paths: Iterable[Path | str], kind: FlopsKind, rates: Rates) -> list[Table]:
    tables = [read_runs(p, kind, rates) if p.is_dir() else read_table_file(p) for p in map(Path, paths)]
    if not tables:
        raise DataError("there is nothing to fit: give run directories, a ladder or a table.")
    return tables


def _match(table: Table, names: Sequence[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """Quantity -> column. Run directories call everything by our names; a mapping is for the tables beside them."""
    return columns.match(table, names, {} if table.known else {k: v for k, v in mapping.items() if v})


def _observations(table: Table, mapping: Mapping[str, str], group: str, fit_first: bool) -> Observations:
    others = [name for name in columns.KNOWN if name not in QUANTITIES]
    used = _match(table, [*QUANTITIES, *others, *(name for name in mapping if name not in QUANTITIES)], mapping)
    if table.known:
        used = {name: name for name in QUANTITIES} | used  # one that a run lacks is missed by name
    else:
        _check_enough(table, used, fit_first)
    values = {name: columns.numbers(table, used[name], name) for name in QUANTITIES if name in used}
    described = {name: table.described.get(name, column) for name, column in used.items()}
    notes = [*table.notes, *columns.derive(table, values, described)]
    if not table.known:
        notes += _questions(table, values)
    budget = None
    if BUDGET in table.available:
        budget = columns.numbers(table, BUDGET, "flops", gaps=table.known)
    return Observations(
        *(values[name] for name in QUANTITIES),
        budget=budget,
        label=tuple(row.label or row.where for row in table.rows),
        notes=tuple(notes),
        columns=described,
        others=_others(table, used, mapping),
        group=tuple(_group(table, group)),
    )


def _others(table: Table, used: dict[str, str], mapping: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The quantities beside N, D, C and the loss. A column that only happens to be called so is left if it is text."""
    found = {}
    for name, column in used.items():
        if name in QUANTITIES:
            continue
        try:
            found[name] = columns.numbers(table, column, name, gaps=True)
        except DataError:
            if mapping.get(name) and not table.known:
                raise
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _group(table: Table, column: str) -> list[str]:
    if not column:
        return []
    if column not in table.available:
        raise DataError(
            f"{table.path} has no column {column!r} to group by{closest(column, table.available)}; "
            f"its columns are {table.listed}."
        )
    return list(columns.labels(table, column))


def _check_enough(table: Table, used: dict[str, str], fit_first: bool) -> None:
    """DataError without a loss or without two of N, D and C."""
    if "loss" not in used:
        how = _fit_it(table, "--loss") if fit_first else "name it with --loss"
        raise DataError(f"{table.path} has no column 'loss'; {how} (its columns: {table.listed}).")
    given = [name for name in ("n_params", "n_tokens", "flops") if name in used]
    if len(given) < 2:
        how = "name them with --n-params, --n-tokens and --flops"
        if fit_first:
            how = _fit_it(table, *(columns.option(n) for n in ("n_params", "n_tokens") if n not in given))
        raise DataError(
            f"{table.path} needs two of N, D and C and has {given[0] if given else 'none'}; {how} "
            f"(its columns: {table.listed})."
        )


def _fit_it(table: Table, *options: str) -> str:
    named = " ".join(f"{option} COLUMN" for option in options)
    return f"fit it first, `areca fit {table.path} {named} --out law.json`, and plan from law.json"


def _questions(table: Table, values: dict[str, np.ndarray]) -> list[str]:
    """Doubts about units, from the ratio of C to 6 N D."""
    ratio = float(np.median(values["flops"] / (6 * values["n_params"] * values["n_tokens"])))
    if ratio < 1e-12:
        return [f"C is {ratio:.1e} of 6 N D in {table.path.name}: are its FLOPs in PF-days (8.64e19 FLOPs)?"]
    if not 0.3 < ratio < 30:
        return [f"C is {ratio:.2g} times 6 N D in {table.path.name}: check the units of its columns."]
    return []


def _join(parts: list[Observations]) -> Observations:
    rows = [row for part in parts for row in part.to_dicts()]
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    described = {k: v for part in reversed(parts) for k, v in part.columns.items()}
    return Observations.from_dicts(rows, notes, described)
