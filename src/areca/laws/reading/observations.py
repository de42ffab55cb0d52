"""What runs said: N, D, C and the loss of each, as float64 columns, and the budgets they share.

N is the number of parameters, without embeddings unless its column says that it counts all (`n_counts`), D training
tokens, C training FLOPs, the loss nats per token. What else is known of the runs (unique tokens, steps, learning rate,
a score) stands beside them in `others`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from areca import counted
from areca.errors import ConfigError, DataError, closest

SAME_BUDGET = 0.10  # relative: figures read off a plot or rounded to whole batches still belong to one budget
VALLEY_ROWS = 4  # runs a budget needs for a parabola with a residual
QUANTITIES = ("n_params", "n_tokens", "flops", "loss")  # what every run must have


@dataclass(frozen=True)
class Observations:
    """n runs. `notes` says what was derived or left out on the way here, in sentences for the user."""

    n_params: np.ndarray  # [n]
    n_tokens: np.ndarray  # [n]
    flops: np.ndarray  # [n]
    loss: np.ndarray  # [n]
    budget: np.ndarray | None = None  # [n] the budget a run was meant for, NaN where it had none
    label: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)  # what each quantity was called or how it was derived
    others: dict[str, np.ndarray] = field(default_factory=dict)  # name -> [n], NaN where a run has no value
    group: tuple[str, ...] = ()  # of each run, for a bootstrap of clusters and for held-out groups; () if none
    warnings: tuple[str, ...] = ()  # what makes a law of them no result to build on

    def __post_init__(self) -> None:
        for name in QUANTITIES:
            values = np.asarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, values)
            if values.shape != (len(self.loss),):
                raise DataError(f"the column {name} has {values.size} values for {len(self.loss)} losses.")
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if bad.size:
                raise DataError(
                    f"{name} is {values[bad[0]]} in {self.name(int(bad[0]))}; it must be a positive number."
                )
        others = {name: np.asarray(values, dtype=np.float64) for name, values in self.others.items()}
        object.__setattr__(self, "others", others)
        for name, count in [*((n, v.size) for n, v in others.items()), ("group", len(self.group) or len(self.loss))]:
            if count != len(self.loss):
                raise DataError(f"the column {name} has {count} values for {len(self.loss)} losses.")

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def n_counts(self) -> counted.NCount:
        """Which parameters N counts, as its column says by its name."""
        return counted.n_count(self.columns.get("n_params", ""))

    @property
    def flops_counts(self) -> counted.FlopsCount:
        """How C is counted: exact FLOPs, 6 N D, or in a way of the table's own."""
        return counted.flops_count(self.columns.get("flops", ""), self._sizes())

    def flops_of(self, n_params: float, n_tokens: float, exact: float) -> float:
        """C of another run as these rows count it, from its N as they count it, its D and its exact FLOPs."""
        count = self.flops_counts
        k = counted.flops_per_nd(self._sizes()) if count == "table" else 6.0
        return counted.flops_as(count, n_params, n_tokens, exact, k)

    def _sizes(self) -> list[counted.Row]:
        return list(zip(self.n_params.tolist(), self.n_tokens.tolist(), self.flops.tolist(), strict=True))

    def name(self, i: int) -> str:
        """How to speak of row i."""
        return self.label[i] if i < len(self.label) else f"row {i + 1}"

    def column(self, name: str) -> np.ndarray:
        """[n] n_params, n_tokens, flops, loss or one of `others`; DataError names those there are."""
        if name in QUANTITIES:
            return getattr(self, name)
        if name not in self.others:
            there = ", ".join([*QUANTITIES, *self.others])
            raise DataError(
                f"the runs have no column {name}{closest(name, self.others)}; name it with --columns {name}=COLUMN "
                f"(they have {there})."
            )
        return self.others[name]

    def select(self, keep: np.ndarray, note: str = "") -> "Observations":
        """The rows of a boolean mask or of indices."""
        index = np.arange(len(self))[keep]
        return Observations(
            self.n_params[index], self.n_tokens[index], self.flops[index], self.loss[index],
            None if self.budget is None else self.budget[index],
            tuple(self.label[i] for i in index) if self.label else (),
            (*self.notes, note) if note else self.notes, self.columns,
            {name: values[index] for name, values in self.others.items()},
            tuple(self.group[i] for i in index) if self.group else (), self.warnings,
        )  # fmt: skip

    def drop_highest(self, count: int) -> "Observations":
        """Without the `count` rows of highest loss (and any as high as the last of them)."""
        if count < 0:
            raise ConfigError(f"drop_highest is {count}; give how many rows to leave out, 0 for none.")
        if count == 0:
            return self
        if count >= len(self):
            raise DataError(f"dropping the {count} rows of highest loss leaves none of {len(self)}.")
        keep = self.loss < np.sort(self.loss)[-count]
        return self.select(keep, f"left out the {int((~keep).sum())} rows of highest loss, as asked.")

    def budgets(self) -> list[tuple[float, np.ndarray]]:
        """[(C, row indices)]: the budgets that at least four runs of different size share, by rising C.

        The budget named in the rows counts where there is one; other rows belong together when their FLOPs differ by
        less than 10% from the smallest of them.
        """
        groups: list[tuple[float, np.ndarray]] = []
        named = np.isfinite(self.budget) if self.budget is not None else np.zeros(len(self), bool)
        if self.budget is not None:
            groups += [(float(c), np.flatnonzero(self.budget == c)) for c in np.unique(self.budget[named])]
        order = np.flatnonzero(~named)
        order = order[np.argsort(self.flops[order], kind="stable")]
        start = 0
        for stop in range(1, len(order) + 1):
            if stop == len(order) or self.flops[order[stop]] > self.flops[order[start]] * (1 + SAME_BUDGET):
                rows = order[start:stop]
                groups.append((float(np.exp(np.log(self.flops[rows]).mean())), rows))
                start = stop
        wide = [
            (c, rows) for c, rows in groups if len(np.unique(np.round(np.log(self.n_params[rows]), 4))) >= VALLEY_ROWS
        ]
        return sorted(wide, key=lambda group: group[0])

    def to_dicts(self) -> list[dict[str, Any]]:
        rows = []
        for i in range(len(self)):
            row: dict[str, Any] = {"label": self.name(i)}
            row |= {k: float(getattr(self, k)[i]) for k in QUANTITIES}
            if self.budget is not None and np.isfinite(self.budget[i]):
                row["budget_flops"] = float(self.budget[i])
            if known := {k: float(v[i]) for k, v in self.others.items() if np.isfinite(v[i])}:
                row["others"] = known
            if self.group:
                row["group"] = self.group[i]
            rows.append(row)
        return rows

    @staticmethod
    def from_dicts(
        rows: list[dict[str, Any]], notes: tuple[str, ...] = (), columns: dict[str, str] | None = None
    ) -> "Observations":
        """The inverse of `to_dicts`. Rows of which only some have a group have theirs as ""."""
        budget = np.array([row.get("budget_flops") or np.nan for row in rows], dtype=np.float64)
        others = [row.get("others") or {} for row in rows]
        groups = tuple(str(row.get("group", "")) for row in rows)
        return Observations(
            *(np.array([row[k] for row in rows], dtype=np.float64) for k in QUANTITIES),
            budget=budget if np.isfinite(budget).any() else None,
            label=tuple(str(row.get("label", f"row {i + 1}")) for i, row in enumerate(rows)),
            notes=notes,
            columns=columns or {},
            others={
                name: np.array([known.get(name, np.nan) for known in others], dtype=np.float64)
                for name in dict.fromkeys(k for known in others for k in known)
            },
            group=groups if any(groups) else (),
        )  # fmt: skip
