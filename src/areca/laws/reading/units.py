"""Units: what a table may count in, and how it comes to ours (parameters, tokens, FLOPs, nats a token).

A unit is named by `--unit QUANTITY=UNIT`, or by the column's own name (`areca.laws.reading.names`). Some need a second
number, named after a colon or in a column of its own: sequences need the context, steps the batch, bits per byte the
bytes in a token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from areca.errors import ConfigError, closest

PF_DAY = 8.64e19  # FLOPs: 1e15 a second for a day (Kaplan et al. 2020, section 1.3)
LN2 = float(np.log(2.0))
SCALES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
WORDS = {"thousands": "K", "millions": "M", "billions": "B", "trillions": "T"}
FLOPS = {
    "pf-days": PF_DAY, "kflops": 1e3, "mflops": 1e6, "gflops": 1e9, "tflops": 1e12,
    "pflops": 1e15, "eflops": 1e18, "zflops": 1e21, "yflops": 1e24,
}  # fmt: skip
SHORT = {"params": "n_params", "tokens": "n_tokens", "compute": "flops"}  # for whoever types
# quantity -> unit -> the quantity that the unit needs a value of ("" for none)
UNITS: dict[str, dict[str, str]] = {
    "n_params": {"params": ""} | dict.fromkeys(SCALES, ""),
    "n_params_total": {"params": ""} | dict.fromkeys(SCALES, ""),
    "n_tokens": {"tokens": ""} | dict.fromkeys(SCALES, "") | {"sequences": "context", "steps": "batch_tokens"},
    "unique_tokens": {"tokens": ""} | dict.fromkeys(SCALES, "") | {"sequences": "context"},
    "batch_tokens": {"tokens": ""} | dict.fromkeys(SCALES, "") | {"sequences": "context"},
    "b_crit": {"tokens": ""} | dict.fromkeys(SCALES, "") | {"sequences": "context"},
    "steps": {"steps": ""} | dict.fromkeys(SCALES, ""),
    "flops": {"flops": ""} | dict.fromkeys(FLOPS, ""),
    "flops_exact": {"flops": ""} | dict.fromkeys(FLOPS, ""),
    "flops_6nd": {"flops": ""} | dict.fromkeys(FLOPS, ""),
    "loss": {"nats": "", "bits-per-token": "", "bits-per-byte": "bytes_per_token", "perplexity": ""},
    "score": {"share": "", "percent": ""},
}


@dataclass(frozen=True)
class Unit:
    """A unit of a quantity, with the second number where it was given with it."""

    name: str
    per: float | None = None

    def needs(self, quantity: str) -> str:
        """The quantity that has to be known beside, or ""."""
        return "" if self.per is not None or quantity not in UNITS else UNITS[quantity][self.name]

    def convert(self, values: np.ndarray, per: np.ndarray | float | None = None) -> np.ndarray:
        """[n] in our units; `per` is the second number, [n] or one for all."""
        per = self.per if per is None else per
        if self.name == "perplexity":
            return np.log(values)
        if self.name == "bits-per-token":
            return values * LN2
        if self.name == "percent":
            return values / 100
        if self.name == "bits-per-byte":
            return values * LN2 * (1.0 if per is None else per)
        if self.name in ("sequences", "steps") and per is not None:
            return values * per
        return values * (SCALES | FLOPS).get(self.name, 1.0)


def parse_units(given: Mapping[str, str]) -> dict[str, Unit]:
    """{"tokens": "B"} -> {"n_tokens": Unit("B")}; ConfigError names what there is."""
    units: dict[str, Unit] = {}
    for name, words in given.items():
        quantity = SHORT.get(name, name)
        if quantity not in UNITS:
            raise ConfigError(
                f"--unit {name}={words}: {name!r} has no units{closest(name, UNITS)}; {_list(UNITS)} have."
            )
        word, colon, number = words.partition(":")
        units[quantity] = Unit(
            _known(quantity, word, name, words), _per(quantity, name, words, number) if colon else None
        )
    return units


def _known(quantity: str, word: str, name: str, words: str) -> str:
    folded = {unit.lower(): unit for unit in UNITS[quantity]}
    if (unit := folded.get(WORDS.get(word.lower(), word).lower().replace("_", "-"))) is None:
        raise ConfigError(
            f"--unit {name}={words}: {word!r} is not a unit of {quantity}{closest(word, UNITS[quantity])}; "
            f"it can be {_list(UNITS[quantity], 'or')}."
        )
    return unit


def _per(quantity: str, name: str, words: str, number: str) -> float:
    word = _known(quantity, words.partition(":")[0], name, words)
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not UNITS[quantity][word] or not 0 < value < 1e15:
        what = UNITS[quantity][word]
        how = f"give the {what.replace('_', ' ')} as a positive number" if what else f"{word} takes no number"
        raise ConfigError(f"--unit {name}={words}: {number!r} can't be used; {how}.")
    return value


def _list(names: Iterable[str], last: str = "and") -> str:
    *most, end = names
    return f"{', '.join(most)} {last} {end}" if most else end
