"""Suspicious data is questioned: a note where a law still means something, a refusal where it would be nonsense.

What C should be, 6 N D, tells of most slips: PF-days, sequences or steps for tokens, millions for ones, N with its
embeddings. A quantity whose unit the user has named (`--unit n_tokens=tokens`) is not questioned again.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from areca.counted import EXACT, n_count
from areca.errors import DataError
from areca.laws.reading.columns import Found, option, usual_names
from areca.laws.reading.formats import Table
from areca.laws.reading.quantities import SYMBOLS
from areca.laws.reading.ratio import PLAIN, impossible, ratio_question, slip
from areca.laws.reading.repeats import curve_question, repeats
from areca.laws.reading.units import SCALES, Unit

MIXED = 100.0  # C / 6 N D of rows in one unit never jumps by as much
HIGHEST_LOSS = 13.0  # nats: ln V of a vocabulary of 440,000, which a model knows before it learns anything
MOST_EMBEDDED = 2e7  # parameters over the cube root of N: a vocabulary of 440,000 at a width of 50 N^(1/3)
FEWEST_DERIVED = 1e4  # tokens or parameters: what C / 6 N or C / 6 D must come to
# Below this every count of a quantity is in another unit, most likely the first of those.
SMALL = (
    ("n_params", 100.0, ("B", "M"), "N"), ("n_tokens", 1e4, ("B", "M"), "D"), ("flops", 1e7, ("pf-days",), "C"),
)  # fmt: skip


def questions(table: Table, found: Found, given: set[str], units: Mapping[str, Unit]) -> list[str]:
    """Notes about what is odd in a table; DataError where it is certainly a slip.

    `given` are the quantities that the table has (the others are derived), `units` those that the user named. What is
    worse than a note goes to the `warnings` of `found`.
    """
    notes = []
    sizes, sure = {"n_params", "n_tokens", "flops"}, set(units)
    if sizes <= given:
        if not sizes <= sure:
            _refuse_mixed(table, found)
        ratio_question(table, found, units)
    _refuse_small(table, found, given - sure)
    if sizes <= given:
        notes += _of_ratio(table, found, units)
    elif sizes <= set(found.values):
        notes += _of_scale(table, found, given, sure)
    if "n_params" in given - sure and n_count(found.used["n_params"]) == "total":
        notes.append(
            f"N is {found.used['n_params']!r}, which by its name counts embeddings; they bend a law at small sizes, so "
            "give N without them where you have it."
        )
    if "loss" in found.values and "loss" not in sure:
        notes += _of_loss(table, found)
    if {"n_params", "n_tokens", "loss"} <= set(found.values):
        notes += repeats(table, found)
        notes += curve_question(table, found)
    return notes


def mixed_sizes(columns: Sequence[Mapping[str, str]]) -> list[str]:
    """A note where N counts embeddings in some tables and not in others, by what its column is called in each."""
    names = {n_count(of["n_params"]): of["n_params"] for of in reversed(columns) if "n_params" in of}
    if len(names) < 2:
        return []
    return [
        f"N counts embeddings in some of the rows ({names['total']!r}) and not in others ({names['non-embedding']!r}), "
        "which bends a law at small sizes; take one kind of column from all of them (--n-params)."
    ]


def _refuse_small(table: Table, found: Found, asked: set[str]) -> None:
    """DataError where all counts of a quantity are too small to be of a model or a run."""
    for name, least, units, what in SMALL:
        others = {"n_params", "n_tokens", "flops"} <= set(found.used)
        if name in asked and name in found.values and not (name == "flops" and others):
            most = found.values[name].max()
            if most < least:
                likely = [unit for unit in units if most * SCALES.get(unit, 1.0) >= 1e3] or units[:1]
                raise DataError(slip(table, found, f"{what} is at most {most:g}", [(name, unit) for unit in likely]))


def _of_ratio(table: Table, found: Found, units: Mapping[str, Unit]) -> list[str]:
    """C against 6 N D, where all three are given."""
    n, d, c = (found.values[k] for k in ("n_params", "n_tokens", "flops"))
    ratio = c / (6 * n * d)
    middle = float(np.median(ratio))
    if 0.31 < middle < 0.36 and ratio.max() < 1.1 * ratio.min():
        return [f"C is a third of 6 N D in {table.path.name}: is it the forward pass alone, 2 N D?"]
    drift = _of_embeddings(table, found, ratio)
    found.warnings += (odd := impossible(table, found, units, explained=bool(drift)))
    if not drift and not odd and not 0.3 < middle < 30:
        return [f"C is {middle:.2g} times 6 N D in {table.path.name}: check the units of its columns."]
    return drift


def _refuse_mixed(table: Table, found: Found) -> None:
    n, d, c = (found.values[k] for k in ("n_params", "n_tokens", "flops"))
    ratio = c / (6 * n * d)
    order = np.argsort(ratio)
    steps = ratio[order][1:] / ratio[order][:-1]
    if not len(steps) or steps.max() < MIXED:
        return
    cut = int(np.argmax(steps)) + 1
    low, high = order[:cut], order[cut:]
    odd, usual = (low, high) if len(low) <= len(high) else (high, low)
    first, other = table.rows[int(odd.min())].where, table.rows[int(usual.min())].where
    raise DataError(
        f"{table.path} mixes units: C / 6 N D is {ratio[odd.min()]:.2g} in {first} (and like it in {len(odd)} of "
        f"{len(ratio)} rows) and {ratio[usual.min()]:.2g} in {other}; bring each column to one unit."
    )


def _of_embeddings(table: Table, found: Found, ratio: np.ndarray) -> list[str]:
    """Does C / 6 N D drift with N as embeddings would make it?

    With N' = N - v counted in C = 6 N' D the ratio is 1 - v / N, with output logits in C and not in N it is 1 + v / N;
    v, vocabulary times width, grows slower than N, about as its cube root.
    C of the second kind is called exact from here on.
    """
    n = found.values["n_params"]
    apart = np.abs(ratio - 1)
    if len(np.unique(n)) < 4 or apart.max() < 0.05 or (np.sign(ratio - 1) != np.sign(ratio[0] - 1)).any():
        return []
    v = n * apart
    x, y = np.log(n), np.log(v)
    slope, at = np.polyfit(x, y, 1)
    spread = np.std(y - (slope * x + at))
    if (v > MOST_EMBEDDED * np.cbrt(n)).any():
        return []
    if not 0 <= slope < 0.8 or spread > 0.3 or np.corrcoef(x, ratio)[0, 1] * np.sign(ratio[0] - 1) > -0.7:
        return []
    i, j = int(np.argmin(n)), int(np.argmax(n))
    drift = f"C / 6 N D goes from {ratio[i]:.3g} at N = {n[i]:.3g} to {ratio[j]:.3g} at N = {n[j]:.3g}"
    if ratio[0] < 1:
        return [
            f"{drift} in {table.path.name}: does N count embeddings ({v[i]:.2g} to {v[j]:.2g} parameters) that C does "
            "not? A law wants N without them: they bend it at small sizes."
        ]
    if (count := found.described["flops"]) and "exact" not in count.lower():
        found.described["flops"] = f"{count} ({EXACT})"  # what `areca.counted` goes by
    return [
        f"{drift} in {table.path.name}, as exact FLOPs do, which have the logits ({v[i]:.2g} to {v[j]:.2g} parameters "
        "worth) and attention in them; a budget for this law is then in exact FLOPs too."
    ]


def _of_scale(table: Table, found: Found, given: set[str], sure: set[str]) -> list[str]:
    """N and D by themselves, where C can't tell: counts so small that they are in another unit."""
    n, d = found.values["n_params"], found.values["n_tokens"]
    per = float(np.median(d / n))
    if "n_params" in given - sure and n.max() < 1e5 and per > 1e5:
        raise DataError(slip(table, found, f"N is at most {n.max():g}", [("n_params", "M")]))
    for name, values, of, what in (("n_tokens", d, "N", "tokens"), ("n_params", n, "D", "parameters")):
        if "flops" in given - sure and name not in given and values.max() < FEWEST_DERIVED:
            raise DataError(_not_flops(table, found, f"C / 6 {of} is at most {values.max():.3g} {what}"))
    notes = []
    for name in ("n_params", "n_tokens"):
        source = name if name in given else "flops"  # a derived count jumps where C does
        if source in given - sure:
            _refuse_jump(table, found, name, source)
    if per < 0.1 and "n_tokens" in given - sure:
        notes.append(
            f"half of the runs of {table.path.name} saw fewer than {per:.2g} tokens a parameter: is D in sequences or "
            "steps (--unit n_tokens=sequences:CONTEXT, or steps:BATCH)?"
        )
    return notes


def _not_flops(table: Table, found: Found, seen: str) -> str:
    """The sentence for C that is too small to be FLOPs, or another quantity."""
    column = found.used["flops"]
    for name in ("n_tokens", "n_params"):
        if name not in found.used and usual_names(name, [column]):
            return (
                f"{seen} in {table.path}: {column!r}, taken for C, is by its name {SYMBOLS[name]}; say {option(name)} "
                "of it, or --unit flops=flops if it is in FLOPs."
            )
    return slip(table, found, seen, [("flops", "pf-days")])


def _refuse_jump(table: Table, found: Found, name: str, source: str) -> None:
    """DataError where a few counts are in another unit (1.3 among 1,300,000,000); `source` was read for them."""
    values = found.values[name]
    order = np.argsort(values)
    steps = values[order][1:] / values[order][:-1]
    if len(steps) and steps.max() > 1e4 and values.min() < 1e5:
        cut = int(np.argmax(steps))
        low, high = int(order[cut]), int(order[cut + 1])
        read = found.values[source]
        raise DataError(
            f"{table.path} mixes units in column {found.used[source]!r}: {read[low]:g} in {table.rows[low].where} and "
            f"{read[high]:g} in {table.rows[high].where}; bring it to one unit, or say that it is "
            f"(--unit {source}={PLAIN[source]})."
        )


def _of_loss(table: Table, found: Found) -> list[str]:
    """Losses that can't be nats a token of a model that learns from size and data."""
    loss, column = found.values["loss"], found.used["loss"]
    way_out = "--unit loss=perplexity, or --unit loss=nats if they are right"
    high = loss > HIGHEST_LOSS
    if np.median(loss) > HIGHEST_LOSS:
        raise DataError(
            f"{column!r} of {table.path} is {np.median(loss):.4g} in the median, more than any vocabulary's ln V, as "
            f"if it were a perplexity; say {way_out}."
        )
    if high.any():
        i = int(np.flatnonzero(high)[0])
        raise DataError(
            f"{table.rows[i].where} has {loss[i]:.4g} in column {column!r}, more than any vocabulary's ln V, beside "
            f"{np.median(loss):.4g} in the median; leave out runs that diverged and bring the column to one unit "
            "(or say --unit loss=nats)."
        )
    if {"n_params", "n_tokens"} <= set(found.values) and _rises(found):
        raise DataError(
            f"{column!r} of {table.path} rises with N and with D, as an accuracy does and a loss never; give the loss, "
            "or say --unit loss=nats if it is one."
        )
    if loss.max() < 1:
        return [
            f"all losses of {table.path.name} lie below 1: are they nats a token (--unit loss=bits-per-byte:BYTES and "
            "bits-per-token are read too)?"
        ]
    return []


def _rises(found: Found) -> bool:
    """True where ln L rises with ln N and with ln D, each by more than three standard errors."""
    x = np.log(np.stack([found.values["n_params"], found.values["n_tokens"]], axis=1))
    x, y = x - x.mean(axis=0), np.log(found.values["loss"])
    if len(y) < 6 or np.linalg.matrix_rank(x) < 2:
        return False
    slopes, *_ = np.linalg.lstsq(x, y - y.mean(), rcond=None)
    left = y - y.mean() - x @ slopes
    errors = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * (left @ left) / (len(y) - 3))
    return bool((slopes > 3 * errors).all() and (slopes > 0).all())
