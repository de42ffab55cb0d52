"""What C over 6 N D tells of the units of a table: which one unit, named for one column, makes it come to about 1.

Sound counts of C lie between a third of 6 N D (the forward pass alone) and some times 6 N D (embeddings, logits and
attention in small models). A ratio that no count has is a slip, and so is a number that happens to look right: the user
is asked, and an answer is taken as it is, with a warning where it leaves the ratio impossible.
"""

from collections.abc import Mapping

import numpy as np

from areca.errors import DataError
from areca.laws.reading.columns import Found
from areca.laws.reading.formats import Table
from areca.laws.reading.units import FLOPS, SCALES, Unit

PLAIN = {"n_params": "params", "n_tokens": "tokens", "flops": "flops"}  # our own units
EVEN = 1.5  # the largest ratio over the smallest of rows that count in one way
LEAST, MOST = 0.31, 3.2  # of an even ratio: the forward pass alone, and thrice 6 N D
FEWEST, LARGEST = 1 / 30, 100.0  # of an uneven one
SEQUENCE = (8, 2**17)  # tokens that one may have
BATCH = (1.7e4, 1e8)  # tokens that a step may have
SIZES = {"n_params": (1e3, 1e14), "n_tokens": (1e5, 1e16)}  # of a model and of a run, in any unit
LARGE = {"n_params": 1e5, "n_tokens": 1e7}  # a count that is one as it stands, and hardly in millions


def ratio_question(table: Table, found: Found, units: Mapping[str, Unit]) -> None:
    """DataError where a unit explains a C / 6 N D that no run has; `units` are those that the user named."""
    ratio = _ratio(found)
    names = candidates(found, units)
    if not names or _answered(units, {name for name, _ in names}):
        return
    _ask(table, found, ratio, names, units)


def impossible(table: Table, found: Found, units: Mapping[str, Unit], explained: bool) -> list[str]:
    """A warning for a ratio that no run has, where the user says that it is right; DataError where nobody does.

    `explained`: what makes the ratio uneven is known.
    """
    ratio = _ratio(found)
    middle, even = float(np.median(ratio)), _even(ratio)
    if (LEAST < middle < MOST) if even else (explained or FEWEST < middle < LARGEST):
        return []
    if _answered(units, {name for name, _ in candidates(found, units)}):
        said = " --unit ".join(f"{name}={unit.name}" for name, unit in units.items() if name in PLAIN)
        return [
            f"C is {middle:.4g} times 6 N D in {table.path.name}, which no training run costs; it is taken as it is "
            f"(--unit {said}), and every budget and size of this law with it."
        ]
    _ask(table, found, ratio, candidates(found, units), units)
    return []


def candidates(found: Found, units: Mapping[str, Unit]) -> list[tuple[str, str]]:
    """[(quantity, unit)], the nearest first: each alone would bring C to about 6 N D, and is not named otherwise."""
    ratio = _ratio(found)
    middle, even = float(np.median(ratio)), _even(ratio)
    exact = ratio.max() < 1.01 * ratio.min()
    low, high = (0.5, 3.0)
    if LEAST < middle < MOST or (not even and 0.1 < middle < 30):
        return []
    if not even:  # logits and attention weigh least in the largest models
        middle = float(np.median(ratio[found.values["n_params"] == found.values["n_params"].max()]))
    found_units: list[tuple[float, str, str]] = []

    def add(name: str, unit: str, size: float) -> None:
        left = middle / size if name != "flops" else middle * size
        if low < left < high:
            found_units.append((abs(float(np.log(left))), name, unit))

    free = {name for name in PLAIN if name not in units or units[name].name == PLAIN[name]}
    if "flops" in free:
        base = _base(found, "flops")
        for unit, size in FLOPS.items():
            if size != base:
                add("flops", unit, size / base)
    for name in ("n_params", "n_tokens"):
        values = found.values[name]
        base = _base(found, name)
        for unit, size in ({} if name not in free else SCALES).items():
            large = base == 1 and size >= 1e6 and np.median(values) >= LARGE[name]
            if size != base and not large and _plausible(name, values, size / base):
                add(name, unit, size / base)
    if "n_tokens" in free and _plausible("n_tokens", found.values["n_tokens"], middle):
        if SEQUENCE[0] <= middle <= SEQUENCE[1] and (even or middle > 200):
            size = _context(middle, exact)
            add("n_tokens", f"sequences:{size}", size)
        if even and BATCH[0] < middle < BATCH[1]:
            add("n_tokens", f"steps:{middle:.6g}", float(f"{middle:.6g}"))
    found_units.sort(key=lambda each: each[0])
    if exact:  # as printed with three digits: what misses by percents is not it where another one meets it
        nearest = min((off for off, *_ in found_units), default=0.0)
        found_units = [each for each in found_units if each[0] < max(0.01, 2 * nearest)]
    return [(name, unit) for _, name, unit in found_units]


def _context(ratio: float, exact: bool) -> int:
    """The tokens of a sequence that the ratio tells of: a power of two if it is near one (C may be some more than
    6 N D, unless all rows have it `exact`-ly), else the ratio itself."""
    power = 2 ** round(np.log2(ratio)) if exact else 2 ** int(np.log2(ratio * 1.05))
    near = 0.99 < ratio / power < 1.01 if exact else ratio / power < 1.5
    return power if near else round(ratio)


def slip(table: Table, found: Found, seen: str, choices: list[tuple[str, str]]) -> str:
    """The sentence that asks which unit a column is in: `seen` is what is odd, the last choice is "as it stands"."""
    first = choices[0][0]
    last = (first, PLAIN[first]) if _base(found, first) == 1 else ("flops", PLAIN["flops"])
    columns = {name: repr(found.used.get(name, name)) for name, _ in choices}
    kinds = list(dict.fromkeys(f"{columns[name]} were in {unit.partition(':')[0]}" for name, unit in choices))
    options = [f"--unit {name}={unit}" for name, unit in choices]
    return (
        f"{seen} in {table.path}, as if {' or '.join(kinds)}; say which it is, "
        f"{', '.join(options)} or --unit {last[0]}={last[1]}."
    )


def _ask(
    table: Table, found: Found, ratio: np.ndarray, choices: list[tuple[str, str]], units: Mapping[str, Unit]
) -> None:
    middle, even = float(np.median(ratio)), _even(ratio)
    seen = f"C is {middle:.4g} times 6 N D{'' if even else ' in the median'}"
    if choices:
        raise DataError(slip(table, found, seen, choices))
    columns = ", ".join(f"{found.used[name]!r} ({letter})" for name, letter in zip(PLAIN, "NDC", strict=True))
    raise DataError(
        f"{seen} in {table.path}, which no training run costs and no one unit explains: correct the units of "
        f"{columns}, or say --unit flops=flops if all three are right."
    )


def _answered(units: Mapping[str, Unit], asked: set[str]) -> bool:
    """Whether the user says of a quantity in question, or of C, that it is counted as it stands."""
    if not asked:
        return bool(set(units) & set(PLAIN))
    plain = {name for name, unit in units.items() if unit.name == PLAIN.get(name)}
    return bool(plain & (asked | {"flops"}))


def _base(found: Found, name: str) -> float:
    """What a column is multiplied by already, because its name tells a unit."""
    unit = found.described.get(name, "").removeprefix(found.used.get(name, "")).strip(" ()")
    return (SCALES | FLOPS).get(unit, 1.0)


def _plausible(name: str, values: np.ndarray, size: float) -> bool:
    low, high = SIZES[name]
    return bool(low <= values.max() * size <= high)


def _even(ratio: np.ndarray) -> bool:
    return bool(ratio.max() < EVEN * ratio.min())


def _ratio(found: Found) -> np.ndarray:
    """[n] C / 6 N D."""
    n, d, c = (found.values[k] for k in ("n_params", "n_tokens", "flops"))
    return c / (6 * n * d)
