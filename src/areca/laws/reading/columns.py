"""Which column is which quantity, in which unit, and its numbers.

A quantity has one name and one unit here, whatever a table calls it and counts it in. A column is taken for a quantity
when it is named by the user, when it has the quantity's name, or when it has a usual name for it and no other column
has; the last is said in a note. Complaints name the file, the row, the column and the value.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from areca.errors import DataError, closest
from areca.laws.reading import cells
from areca.laws.reading.formats import DOUBLED, Table
from areca.laws.reading.names import bare, told
from areca.laws.reading.observations import QUANTITIES
from areca.laws.reading.quantities import HINTS, KNOWN, OPTIONS, SYMBOLS, Quantity
from areca.laws.reading.units import SCALES, UNITS, Unit

# Where trackers and configurations keep a setting: "summary.eval/loss", "config.model.n_layers".
_ROOMS = re.compile(
    r"^((config|summary|summary_metrics|hparams|args|counts|model|model_config|data|optimizer)[./])+(?=\w)"
)
FEWEST_BITS = 2.0  # a token: where all are fewer and nobody says of what, they may be bits a byte
_ANY = Quantity("a quantity of the user's", positive=False)


@dataclass(frozen=True)
class Reading:
    """How to read tables: which column a quantity is, in which unit, and which column has the groups."""

    mapping: Mapping[str, str] = field(default_factory=dict)  # quantity -> column
    units: Mapping[str, Unit] = field(default_factory=dict)
    group: str = ""


@dataclass
class Found:
    """What was read of a table, in our units."""

    values: dict[str, np.ndarray]  # quantity -> [n]
    described: dict[str, str]  # quantity -> its column, or how it was derived
    notes: list[str]
    used: dict[str, str]  # quantity -> column
    warnings: list[str] = field(default_factory=list)  # what makes a law of them no result to build on


def option(name: str) -> str:
    """How the command line names the column of a quantity."""
    return f"{OPTIONS[name]} COLUMN" if name in OPTIONS else f"--columns {name}=COLUMN"


def match(table: Table, names: Iterable[str], mapping: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """({quantity: column}, what to say) for those of `names` that the table has.

    DataError for a mapped column that is not there, that is there twice, or that is mapped twice.
    """
    used = {name: _mapped(table, column) for name, column in mapping.items() if column}
    names = dict.fromkeys(names)
    for name in names:
        # A column of another quantity that the user takes for one of the four is that one only.
        if name not in used and name in table.available and (name in QUANTITIES or name not in used.values()):
            used[name] = _mapped(table, name)
    for name, column in used.items():
        twice = [other for other, c in used.items() if c == column and other != name]
        if twice:
            raise DataError(
                f"column {column!r} of {table.path} is mapped twice, as {name} and as {twice[0]}; map each column once."
            )
    notes: list[str] = []
    if table.known:
        return used, notes
    taken: dict[str, str] = {}
    if "flops" in names and "flops" not in used and (column := _instead(table, "flops_exact", used, mapping)):
        taken["flops"] = column
    usual = {k: c for k in names if k not in used | taken and (c := _usual(table, k, used | taken))}
    taken |= usual
    if "n_params" in names and not ("n_params" in used | taken or usual_names("n_params", _candidates(table, used))):
        taken |= _total(table, used, taken, mapping)
    said = [f"{SYMBOLS.get(name, name)} is {column!r}" for name, column in taken.items()]
    if any(name in QUANTITIES for name in taken):
        notes.append(f"columns taken from {table.path.name} by their names: {', '.join(said)}.")
    if "loss" in taken and "train" in _compact(taken["loss"]):
        notes.append(f"{taken['loss']!r} is a training loss; a held-out one says more (--loss COLUMN).")
    if used.get("loss") == "loss" and not mapping.get("loss") and (other := _usual(table, "loss", used, groups=1)):
        notes.append(f"the loss is 'loss'; if {other!r} is the held-out one, say --loss {quoted(other)}.")
    total = (used | taken).get("n_params_total")
    if total and "n_params" in used | taken and not {"n_params", "n_params_total"} & set(mapping):
        column = (used | taken)["n_params"]
        notes.append(f"N is {column!r} and not {total!r}, which counts embeddings too (--n-params {quoted(total)}).")
    return used | taken, notes


def _instead(table: Table, name: str, used: dict[str, str], mapping: Mapping[str, str]) -> str:
    """The column of the quantity `name`, free to be another's; "" for none. It is taken out of `used`.

    What the user has mapped is not free.
    """
    if name in mapping or name in used:
        return "" if name in mapping else used.pop(name)
    return _usual(table, name, used)


def _total(table: Table, used: dict[str, str], taken: dict[str, str], mapping: Mapping[str, str]) -> dict[str, str]:
    """{"n_params": the column of all parameters} where no other count is N, {} for none."""
    column = taken.pop("n_params_total", "") or _instead(table, "n_params_total", used, mapping)
    return {"n_params": column} if column else {}


def with_units_of(reading: Reading, used: Mapping[str, str]) -> Reading:
    """The reading, in which a unit named for all parameters or exact FLOPs is that of N or C where they are it."""
    units = dict(reading.units)
    for name, other in (("n_params", "n_params_total"), ("flops", "flops_exact")):
        if other in units and other not in used and name in used and name not in units:
            units[name] = units[other]
    return replace(reading, units=units)


def _mapped(table: Table, column: str) -> str:
    if column not in table.available:
        raise DataError(
            f"{table.path} has no column {column!r}{closest(column, table.available)}; its columns are {table.listed}."
        )
    if f"{DOUBLED}{column}" in table.columns:
        raise DataError(f"{table.path} has more than one column {column!r}; rename one (its columns: {table.listed}).")
    return column


def _usual(table: Table, name: str, used: Mapping[str, str], groups: int = 99) -> str:
    """The one column with a usual name for the quantity, "" if there is none or several equally sure ones."""
    free = _candidates(table, used)
    for group in KNOWN[name].names[:groups] if name in KNOWN else ():
        columns = [column for column, compact in free.items() if compact in group.split()]
        if columns:
            return columns[0] if len(columns) == 1 or _equal(table, columns) else ""
    return ""


def usual_names(name: str, columns: Iterable[str]) -> list[str]:
    """Those of `columns` that have the quantity's name or a usual one."""
    usual = {name.replace("_", ""), *" ".join(KNOWN[name].names).split()}
    return [column for column in columns if _compact(column) in usual]


def _candidates(table: Table, used: Mapping[str, str]) -> dict[str, str]:
    """{column: its name in small letters and digits} of the columns with numbers that are not in use."""
    first = table.rows[0].cells
    return {
        column: _compact(column)
        for column in table.available
        if column not in used.values()
        and f"{DOUBLED}{column}" not in table.columns
        and any(cells.parse(row.cells.get(column), True) is not None for row in table.rows[:20])
        and not isinstance(first.get(column), dict | list)
    }


def _compact(column: str) -> str:
    """ "evalloss" of "summary.eval/loss", "tokens" of "tokens (B)"."""
    return bare(re.sub(_ROOMS, "", column.strip()))


def _equal(table: Table, columns: list[str]) -> bool:
    return all(len({str(row.cells.get(column)) for column in columns}) == 1 for row in table.rows)


def hint(table: Table, name: str, used: Mapping[str, str]) -> str:
    """The clause `; it may be 'a' or 'b'` for a message, or nothing."""
    if name not in HINTS:
        return ""
    four = {k: v for k, v in used.items() if k in QUANTITIES}
    columns = [repr(c) for c, compact in _candidates(table, four).items() if re.search(HINTS[name], compact)]
    return f"; it may be {' or '.join(columns[:4])}" if columns else ""


def unread(table: Table, name: str) -> str:
    """The clause `: it has more than one column 'val_loss'` or the like of what would be taken by its name, or ""."""
    for column in usual_names(name, table.available):
        if f"{DOUBLED}{column}" in table.columns:
            return f": it has more than one column {column!r} (rename one)"
        cell = table.rows[0].cells.get(column)
        if column not in _candidates(table, {}):
            shown = repr(json.dumps(cell)) if cell is None or isinstance(cell, bool) else repr(str(cell)[:40])
            return f": {column!r} has no number, as {shown} in {table.rows[0].where.removeprefix(f'{table.path} ')}"
    return ""


def quoted(column: str) -> str:
    return f"'{column}'" if re.search(r"[^\w./-]", column) else column


def read(table: Table, used: Mapping[str, str], reading: Reading, *, needed: Iterable[str]) -> Found:
    """The numbers of the columns in `used`. Those of `needed` must have a value in every row, others may have gaps.

    A column of another quantity that only happens to be called so is left out if it can't be read.
    """
    found = Found({}, {}, [], dict(used))
    needed = set(needed)
    units: dict[str, Unit] = {}

    def left_out(name: str, error: DataError) -> None:
        if name in needed or reading.mapping.get(name):
            raise error
        found.notes.append(f"column {used[name]!r} is left out: {error}")

    for name, column in used.items():
        try:
            units[name] = unit_of(table, name, column, reading.units)
        except DataError as error:
            left_out(name, error)
    # What others are converted with comes first: a batch may be in sequences itself.
    for name in sorted(units, key=lambda name: (units[name].needs(name) != "", name != "batch_tokens")):
        column, unit, sure = used[name], units[name], name in reading.units
        plain = unit.name == _plain(name)
        try:
            values = cells.numbers(
                table, column, count=plain and "K" in UNITS.get(name, ()),
                positive=KNOWN.get(name, _ANY).positive, gaps=name not in needed,
            )  # fmt: skip
            asked = _check_score(table, unit, values, column, sure) if name == "score" else []
            found.values[name] = values if plain else _converted(table, name, unit, values, found, sure)
        except DataError as error:
            left_out(name, error)
            continue
        found.notes += asked
        found.described[name] = table.described.get(name, column if plain else f"{column} ({unit.name})")
    found.values = {name: found.values[name] for name in used if name in found.values}
    return found


def _plain(name: str) -> str:
    """The quantity's own unit."""
    return next(iter(UNITS.get(name, ("",))))


def unit_of(table: Table, name: str, column: str, units: Mapping[str, Unit]) -> Unit:
    """The unit that the user names, else the one that the column's name tells, else ours.

    DataError where the name tells what is no unit of ours.
    """
    if table.known or name not in UNITS:
        return Unit(_plain(name))
    if name in units:
        return units[name]
    its = told(name, re.sub(_ROOMS, "", column.strip()))
    if its.counts:
        what = KNOWN[name].meaning
        raise DataError(f"{column!r} of {table.path} is by its name {its.counts}, not {what}; {its.way_out}.")
    return Unit(its.unit if its.unit in UNITS[name] else _plain(name))


def _converted(table: Table, name: str, unit: Unit, values: np.ndarray, found: Found, sure: bool) -> np.ndarray:
    column = found.used[name]
    per, beside = None, unit.needs(name)
    if beside:
        if beside not in found.values or not np.isfinite(found.values[beside]).all():
            raise DataError(
                f"{column!r} of {table.path} in {unit.name} needs {KNOWN[beside].meaning} to become {_plain(name)}; "
                f"give it as --unit {name}={unit.name}:NUMBER, or its column with {option(beside)}."
            )
        per = found.values[beside]
    large = float(np.nanmax(values))
    if unit.name in SCALES and large > 1e7:
        raise DataError(
            f"{table.path} has {large:g} in column {column!r}, too much for a count in {unit.name}; give the unit as "
            f"--unit {name}={_plain(name)}, or correct the column."
        )
    if unit.name == "perplexity" and float(np.nanmin(values)) <= 1:
        raise DataError(f"{table.path} has a perplexity of {np.nanmin(values):g} in {column!r}; it must be above 1.")
    if unit.name == "bits-per-token" and not sure and "token" not in column.lower() and large < FEWEST_BITS:
        raise DataError(
            f"{column!r} of {table.path} is at most {large:g} bits, as bits a byte are; say which it is, --unit "
            f"{name}=bits-per-token or --unit {name}=bits-per-byte:NUMBER with the bytes in a token."
        )
    why = "" if sure else f", as its name says (--unit {name}={_plain(name)} if it is not)"
    found.notes.append(f"{column!r} of {table.path.name} is read in {unit.name}{why}.")
    return unit.convert(values, per)


def _check_score(table: Table, unit: Unit, values: np.ndarray, column: str, sure: bool) -> list[str]:
    """A question about scores, or DataError where they are no shares of 1 (`values`, as the table has them).

    Below 0 only what the user calls shares is taken: scores centred on chance fall there.
    """
    most = 100.0 if unit.name == "percent" else 1.0
    bad = np.flatnonzero((values > most) | ((values < 0) & ~(sure and unit.name == "share")))
    if bad.size:
        i = int(bad[0])
        where, worst = f"{table.rows[i].where} has {values[i]:g} in column {column!r}", np.nanmax(values)
        if values[i] < 0:
            way_out = "correct it, or say --unit score=share if scores are centred on chance"
            raise DataError(f"{where}, and a score is not below 0; {way_out}.")
        if most == 100 or worst > 100:
            raise DataError(
                f"{where}, and a score is at most 1, or 100 in percent (--unit score=percent); bring the column to "
                "either."
            )
        if np.nanmedian(values) <= 1:
            raise DataError(
                f"{where}, beside {np.nanmedian(values):.3g} in the median, and a score is a share of 1; bring the "
                "column to one unit, shares or (--unit score=percent) percent."
            )
        raise DataError(f"{where}, and a score is a share of 1; say --unit score=percent if the column is in percent.")
    if unit.name == "percent" and np.nanmax(values) <= 1:
        seen = f"the scores {column!r} of {table.path.name} are at most {np.nanmax(values):g} percent"
        if not sure:
            raise DataError(f"{seen}, as if they were shares; say which, --unit score=share or --unit score=percent.")
        return [f"{seen}: if they are shares of 1, leave out --unit score=percent."]
    return []


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
