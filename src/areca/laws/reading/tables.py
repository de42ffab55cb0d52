"""`load` and `load_columns`: what a law is fitted to, from run directories and from tables of any tool.

What is not given is derived, and said: C from 6 N D, or D from C / 6 N, or N from C / 6 D. What looks like a slip of
units is questioned, or refused where a law of it would be nonsense (`areca.laws.reading.questions`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from areca.errors import DataError, closest
from areca.laws.reading import cells
from areca.laws.reading.columns import (
    Found,
    Reading,
    derive,
    hint,
    match,
    option,
    quoted,
    read,
    unit_of,
    unread,
    with_units_of,
)
from areca.laws.reading.formats import Table, read_table_file
from areca.laws.reading.observations import QUANTITIES, Observations
from areca.laws.reading.quantities import KNOWN, OTHERS, SYMBOLS
from areca.laws.reading.questions import mixed_sizes, questions
from areca.laws.reading.repeats import Duplicates, check_duplicates, repeated_data
from areca.laws.reading.rundirs import BUDGET, FlopsKind, Rates, read_runs
from areca.laws.reading.rundirs import run_directories as run_directories  # areca.plan finds the runs of a law with it
from areca.laws.reading.tensorboard import holds_events, read_tensorboard
from areca.laws.reading.trackers import from_export, holds_wandb, read_wandb
from areca.laws.reading.units import parse_units

SIZES = ("n_params", "n_tokens", "flops")


@dataclass(frozen=True)
class Columns:
    """n runs with the quantities that a form asks for, for laws of other things than N, D, C and the loss."""

    values: dict[str, np.ndarray]  # name -> [n], float64; NaN only in those that were optional
    label: tuple[str, ...]
    group: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    described: dict[str, str] = field(default_factory=dict)  # what each quantity was called or how it was derived

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
    units: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    duplicates: Duplicates = "check",
    flops_kind: FlopsKind = "exact",
    rates: Rates = "best",
    fit_first: bool = False,
) -> Observations:
    """The observations of every path, together.

    A path is a directory of runs, as `run_directories` reads it, or a table.

    Args:
        paths: what to read.
        n_params, n_tokens, flops, loss: a table's columns. Without, the quantity's name or a usual one is taken.
        columns: those of other quantities, {quantity: column} (`areca.laws.reading.quantities`).
        group: a column of labels.
        units: {quantity: unit} where a table counts in others than ours (`areca.laws.reading.units`).
        where: keep the rows that meet each "COLUMN=VALUE" or "COLUMN!=VALUE".
        duplicates: of rows that are the same in N, D, loss and whatever else is known of them keep all, drop all but
            the first, refuse any, or check that they are few.
        flops_kind: of a run directory the exact FLOPs or 6 N D.
        rates: of a ladder's sweep of learning rates the best of each size and budget, or all.
        fit_first: send whoever has to name a column or a unit to `areca fit`, having no options for that.

    Raises:
        DataError: says which file, row and column can't be used; ConfigError: which unit or condition.
    """
    mapping = {"n_params": n_params, "n_tokens": n_tokens, "flops": flops, "loss": loss} | dict(columns or {})
    reading = Reading({k: v for k, v in mapping.items() if v}, parse_units(units or {}), group)
    try:
        tables = _tables(paths, where, reading, flops_kind, rates)
        parts = [_observations(table, its, fit_first) for table, its in tables]
        observations = parts[0] if len(parts) == 1 else _join(parts)
        keys = [observations.column(name) for name in ("n_params", "n_tokens", "loss", *observations.others)]
        keys += _codes(observations.group)
        keep, notes = check_duplicates(keys, observations.label, "N, D and loss", duplicates)
    except DataError as error:
        if fit_first and " --" in str(error) and "areca fit" not in str(error):
            raise DataError(
                f"{str(error)[:-1]} (options of `areca fit`, which writes a law.json to plan from)."
            ) from None
        raise
    return observations.select(keep, *notes)


def load_columns(
    paths: Iterable[Path | str],
    wanted: Sequence[str],
    mapping: Mapping[str, str],
    optional: Sequence[str] = (),
    *,
    group: str = "",
    units: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
    duplicates: Duplicates = "check",
    flops_kind: FlopsKind = "exact",
    rates: Rates = "best",
) -> Columns:
    """The quantities `wanted` of every run, as float64; DataError where one is not there or a run lacks it.

    `mapping` is {quantity: a table's column}; the other arguments are those of `load`. Of `optional` those come that
    any path has, NaN where a run has none. A third of N, D and C is derived from the others, and said.
    """
    reading = Reading({k: v for k, v in mapping.items() if v}, parse_units(units or {}), group)
    values: dict[str, list[np.ndarray]] = {name: [] for name in [*wanted, *optional, "seed"]}
    label: list[str] = []
    groups: list[str] = []
    notes: list[str] = []
    identity: list[dict[str, float]] = []
    described: list[dict[str, str]] = []
    for table, its in _tables(paths, where, reading, flops_kind, rates):
        found = _columns(table, wanted, [*optional, "seed"], its)
        if not table.known:
            found.notes += questions(table, found, set(found.used), reading.units)
        for name, parts in values.items():
            parts.append(found.values.get(name, np.full(len(table.rows), np.nan)))
        label += [row.label or row.where for row in table.rows]
        groups += _group(table, group)
        identity += _identity(table, its)
        notes += [*table.notes, *found.warnings, *found.notes]
        described.append(found.described)
    whole = {name: np.concatenate(parts) for name, parts in values.items()}
    there = {k: v for k, v in whole.items() if k in wanted or (k in optional and np.isfinite(v).any())}
    others = [name for name in dict.fromkeys(k for row in identity for k in row) if name not in whole]
    keys = [*whole.values(), *(np.array([row.get(name, np.nan) for row in identity]) for name in others)]
    keep, said = check_duplicates([*keys, *_codes(groups)], label, ", ".join([*wanted, *others]), duplicates)
    return Columns(
        {name: v[keep] for name, v in there.items()},
        tuple(label[i] for i in keep),
        tuple(groups[i] for i in keep) if groups else (),
        tuple(dict.fromkeys([*notes, *mixed_sizes(described), *said])),
        {k: v for columns in reversed(described) for k, v in columns.items()},
    )


def _tables(
    paths: Iterable[Path | str], where: Sequence[str], reading: Reading, kind: FlopsKind, rates: Rates
) -> list[tuple[Table, Reading]]:
    """Each path's rows and how they are read. Beside a table, a mapping to what run directories lack is the table's."""
    tables = [_read(p, kind, rates) for p in map(Path, paths)]
    if not tables:
        raise DataError("there is nothing to fit: give run directories, a ladder or a table.")
    tables = [table.where(where) for table in tables]
    if all(table.known for table in tables):
        return [(table, reading) for table in tables]
    return [(t, replace(reading, mapping=t.having(reading.mapping)) if t.known else reading) for t in tables]


def _read(path: Path, kind: FlopsKind, rates: Rates) -> Table:
    """The rows of a path: of our own run directories where it has any, else of another tool's."""
    if path.is_dir() and not run_directories(path)[0]:
        if holds_wandb(path):
            return read_wandb(path)
        if holds_events(path):
            return read_tensorboard(path)
    if path.is_dir():
        return read_runs(path, kind, rates)
    if path.exists() and holds_events(path):
        return read_tensorboard(path)
    return from_export(read_table_file(path))


def _observations(table: Table, reading: Reading, fit_first: bool) -> Observations:
    used, notes = match(table, [*QUANTITIES, *OTHERS, *reading.mapping], reading.mapping)
    if table.known:
        used = {name: name for name in QUANTITIES} | used  # one that a run lacks is missed by name
    else:
        _check_enough(table, used, fit_first)
        reading = with_units_of(reading, used)
    found = read(table, used, reading, needed=QUANTITIES)
    given = set(found.values)
    notes += [*found.notes, *_derived(table, found)]
    if not table.known:
        notes += questions(table, found, given, reading.units)
        if "unique_tokens" in found.values:
            found.warnings += repeated_data(table, found)
    budget = None
    if BUDGET in table.available:
        budget = cells.numbers(table, BUDGET, gaps=True)
        if "flops" in reading.units and not table.known:
            budget = reading.units["flops"].convert(budget)
    return Observations(
        *(found.values[name] for name in QUANTITIES),
        budget=budget,
        label=tuple(row.label or row.where for row in table.rows),
        notes=(*table.notes, *notes),
        columns=found.described,
        others={k: v for k, v in found.values.items() if k not in QUANTITIES and np.isfinite(v).any()},
        group=tuple(_group(table, reading.group)),
        warnings=tuple(found.warnings),
    )


def _columns(table: Table, wanted: Sequence[str], optional: Sequence[str], reading: Reading) -> Found:
    """What `load_columns` takes of one table."""
    names = [*wanted, *optional]
    used, notes = match(table, names, reading.mapping)
    lacks = [name for name in wanted if name not in used]
    if lacks and set(lacks) <= set(SIZES):  # the other two can stand in for the third
        used, notes = match(table, [*names, *SIZES], reading.mapping)
    reading = with_units_of(reading, used)
    told = {name: unit_of(table, name, column, reading.units) for name, column in used.items() if name in wanted}
    beside = {unit.needs(name) for name, unit in {**reading.units, **told}.items()} - {""}
    if beside - set(used):
        used = match(table, [*used, *beside], reading.mapping)[0]
    found = read(table, used, reading, needed=[*wanted, *(SIZES if lacks else ())])
    found.notes[:0] = notes
    if lacks:
        found.notes += _derived(table, found)
    if missing := [name for name in wanted if name not in found.values]:
        raise DataError(
            f"{table.path} has no column {missing[0]!r}{closest(missing[0], table.available)}; name it with "
            f"{option(missing[0])}{hint(table, missing[0], used)} (its columns: {table.listed})."
        )
    return found


def _identity(table: Table, reading: Reading) -> list[dict[str, float]]:
    """[n] which run each row is: all that the table knows of it, in its own units, also what a form does not ask for.

    Two runs of other sizes may have the same score at the same compute.
    """
    used = match(table, [*KNOWN, *reading.mapping], reading.mapping)[0]
    read = [{k: cells.parse(row.cells.get(c), True) for k, c in used.items()} for row in table.rows]
    return [{k: v for k, v in row.items() if v is not None} for row in read]


def _codes(groups: Sequence[str]) -> list[np.ndarray]:
    """The groups as a column of numbers, [] without groups."""
    return [np.unique(groups, return_inverse=True)[1].astype(np.float64)] if groups else []


def _derived(table: Table, found: Found) -> list[str]:
    """Adds what `derive` can, and says so, with the columns that may be what is missing."""
    notes = derive(table, found.values, found.described)
    for name in SIZES:
        if name in found.values and name not in found.used and (columns := hint(table, name, found.used)):
            said = columns.replace("it may be", f"{SYMBOLS[name]} may be")
            notes = [f"{note[:-1]}{said} ({option(name)})." for note in notes]
    return notes


def _group(table: Table, column: str) -> list[str]:
    if not column:
        return []
    if column not in table.available:
        raise DataError(
            f"{table.path} has no column {column!r} to group by{closest(column, table.available)}; "
            f"its columns are {table.listed}."
        )
    return list(cells.labels(table, column))


def _check_enough(table: Table, used: dict[str, str], fit_first: bool) -> None:
    """DataError without a loss or without two of N, D and C."""
    listed = f"(its columns: {table.listed})."
    if "loss" not in used:
        how = _fit_it(table, "--loss") if fit_first else "name it with --loss"
        why = unread(table, "loss")
        raise DataError(f"{table.path} has no column 'loss'{why}; {how}{hint(table, 'loss', used)} {listed}")
    given = [name for name in SIZES if name in used]
    if len(given) < 2:
        how = "name them with --n-params, --n-tokens and --flops"
        if fit_first:
            how = _fit_it(table, *(f"--{n.replace('_', '-')}" for n in ("n_params", "n_tokens") if n not in given))
        if table.advice:
            how = f"{how}; {table.advice}"
        hints = "".join(hint(table, name, used).replace("it may be", f"{SYMBOLS[name]} may be") for name in SIZES)
        if "n_tokens" not in given and (steps := used.get("steps", "")):
            hints += (
                f"; D may be {steps!r} times the tokens in a step (--n-tokens {quoted(steps)} --unit n_tokens=steps, "
            )
            hints += "with a column batch_tokens, or steps:BATCH with batch times context)"
        why = "".join(unread(table, name) for name in SIZES if name not in given)
        have = " and ".join(given) or "none"
        raise DataError(f"{table.path} needs two of N, D and C and has {have}{why}; {how}{hints} {listed}")


def _fit_it(table: Table, *options: str) -> str:
    named = " ".join(f"{name} COLUMN" for name in options)
    return f"fit it first, `areca fit {table.path} {named} --out law.json`, and plan from law.json"


def _join(parts: list[Observations]) -> Observations:
    rows = [row for part in parts for row in part.to_dicts()]
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    described = {k: v for part in reversed(parts) for k, v in part.columns.items()}
    if len({part.flops_counts for part in parts}) > 1:
        described["flops"] = "as each table counts it"
    joined = Observations.from_dicts(rows, (*notes, *mixed_sizes([part.columns for part in parts])), described)
    return replace(joined, warnings=tuple(dict.fromkeys(w for part in parts for w in part.warnings)))
