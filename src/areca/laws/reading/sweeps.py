"""A ladder with a sweep of learning rates: which of its runs say what a size can do.

A run at another rate is no repeat of a run, and a law through all of them would be a law of badly tuned models. So for
each size and budget, and whatever else a ladder varies, the rate of the lowest mean loss over its seeds is taken, with
all its seeds.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import read_json

FACTOR = "learning_rate_factor"  # in the labels of a run of a sweep
RUNS_OWN = ("name", "seed", "budget_flops", FACTOR)  # other labels say what a ladder varies
Found = tuple[Path, float | None]  # a run directory and its budget


def best_rates(found: Sequence[Found]) -> tuple[list[Found], list[str]]:
    """The runs without those at other rates than the best of their size and budget, and sentences about it.

    A rate at which some seeds have no result (they diverged, or are to come) can't be the best while another has more.
    Where runs carry no FACTOR nothing is left out.
    """
    cells: dict[tuple[Any, ...], dict[float, list[tuple[Path, float]]]] = {}
    for path, budget in found:
        labels, size, loss = _read(path)
        if (factor := _positive(labels.get(FACTOR))) is not None and loss is not None:
            where = budget if budget is not None else labels.get("budget_flops")
            varied = sorted((k, str(v)) for k, v in labels.items() if k not in RUNS_OWN)
            cells.setdefault((size, where, tuple(varied)), {}).setdefault(factor, []).append((path, loss))
    if not any(len(rates) > 1 for rates in cells.values()):
        return list(found), []
    dropped: set[Path] = set()
    chosen: list[float] = []
    edges = 0
    for rates in cells.values():
        most = max(map(len, rates.values()))
        whole = {f: math.fsum(loss for _, loss in runs) for f, runs in rates.items() if len(runs) == most}
        best = min(whole, key=lambda f: (whole[f], f))
        chosen.append(best)
        edges += best in (min(rates), max(rates))
        dropped |= {path for factor, runs in rates.items() if factor != best for path, _ in runs}
    times = ", ".join(f"{factor:g} in {count}" for factor, count in sorted(Counter(chosen).items()))
    notes = [
        f"of each size and budget the learning rate of the lowest mean loss is used, as a factor of the recipe's: "
        f"{times} of {len(chosen)}; {len(dropped)} runs at other rates are left out (--rates all takes them)."
    ]
    if edges:
        notes.append(
            f"in {edges} of {len(chosen)} sizes and budgets the best learning rate is the lowest or the highest tried, "
            "so a better one may lie beyond."
        )
    return [(path, budget) for path, budget in found if path not in dropped], notes


def _read(path: Path) -> tuple[dict[str, Any], Any, float | None]:
    """Labels, N and loss of a run; what is damaged is left to whoever reads the run in earnest."""
    try:
        result = read_json(path / "result.json")
    except DataError:
        return {}, None, None
    if not isinstance(result, dict) or not isinstance(result.get("labels"), dict):
        return {}, None, None
    return result["labels"], result.get("n_params"), _positive(result.get("loss"))


def _positive(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if usable else None
