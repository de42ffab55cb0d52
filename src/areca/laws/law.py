"""What every law offers, fitted or published: a loss for N and D, an interval where there is one, and where it holds.

`as_law` gives a LawReport these words; `areca.laws.published` has the laws of the literature under their names.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from areca.counted import FlopsCount
from areca.counted import NCount as Counted
from areca.laws.report import LawReport

Span = tuple[float, float]


@dataclass(frozen=True)
class Ranges:
    """Smallest and largest of what a law was measured on; None where that is not known. Losses in nats per token."""

    n_params: Span | None = None  # counted the law's way
    n_tokens: Span | None = None
    flops: Span | None = None  # counted the law's way
    loss: Span | None = None
    context: Span | None = None


class Law(Protocol):
    """One law. Everything is vectorised over N and D but `interval`."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str:
        """The paper with its section, or what was fitted."""
        ...

    @property
    def equation(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Tells a fitted law from others (`areca.lawjson`); empty of a published one, whose name does."""
        ...

    @property
    def n_counts(self) -> Counted:
        """Which parameters N counts: all, or those without embeddings."""
        ...

    @property
    def flops_counts(self) -> FlopsCount:
        """How the C of its ranges is counted."""
        ...

    def flops_of(self, n_params: float, n_tokens: float, exact: float) -> float:
        """C of a run as the law's ranges count it, from its N counted the law's way, its D and its exact FLOPs."""
        ...

    @property
    def ranges(self) -> Ranges: ...
    @property
    def knows_repeats(self) -> bool:
        """Whether a token seen again counts less than a new one."""
        ...

    @property
    def no_interval(self) -> str:
        """Why there is no interval, as a clause; empty where there is one."""
        ...

    def predict(self, n_params: Any, n_tokens: Any, unique_tokens: float | None = None) -> np.ndarray:
        """Loss in nats per token of one run over D tokens, of which `unique_tokens` are different (None: all)."""
        ...

    def interval(
        self,
        n_params: float,
        n_tokens: float,
        level: float,
        flops: float | None = None,
        unique_tokens: float | None = None,
    ) -> tuple[float, float] | None:
        """(low, high) in nats that hold one new run's loss with probability `level`; None where that is not known.

        `flops` are exact: what the run costs.
        """
        ...

    def frontier(self, flops: float) -> tuple[float, float]:
        """The N and D of least loss under C = 6 N D."""
        ...


@dataclass(frozen=True)
class Fitted:
    """A LawReport in the words of Law. N and C are counted as in the rows that were fitted."""

    report: LawReport
    name: str = "fit"
    knows_repeats: bool = False
    no_interval: str = ""

    @property
    def n_counts(self) -> Counted:
        return self.report.n_counts

    @property
    def flops_counts(self) -> FlopsCount:
        return self.report.observations.flops_counts

    def flops_of(self, n_params: float, n_tokens: float, exact: float) -> float:
        return self.report.observations.flops_of(n_params, n_tokens, exact)

    @property
    def source(self) -> str:
        return f"{self.report.parametric.objective} fit to {len(self.report.observations)} runs"

    @property
    def fingerprint(self) -> str:
        return self.report.fingerprint

    @property
    def equation(self) -> str:
        p = self.report.parametric
        form = f"L = {p.E:.4g} + {p.A:.4g} / N^{p.alpha:.4g} + {p.B:.4g} / D^{p.beta:.4g}"
        return f"{form}, averaged with other couplings" if self.report.average else form

    @property
    def ranges(self) -> Ranges:
        o = self.report.observations
        if len(o) == 0:
            return Ranges()
        return Ranges(*((float(v.min()), float(v.max())) for v in (o.n_params, o.n_tokens, o.flops)))

    def predict(self, n_params: Any, n_tokens: Any, unique_tokens: float | None = None) -> np.ndarray:
        return self.report.predict(n_params, n_tokens)

    def interval(
        self,
        n_params: float,
        n_tokens: float,
        level: float,
        flops: float | None = None,
        unique_tokens: float | None = None,
    ) -> tuple[float, float] | None:
        if flops is not None:
            flops = self.flops_of(n_params, n_tokens, flops)
        return self.report.predict_interval(n_params, n_tokens, level, flops=flops)

    def frontier(self, flops: float) -> tuple[float, float]:
        return minimise_over_size(self, flops)


def as_law(law: Law | LawReport) -> Law:
    """A law in the words of Law."""
    return Fitted(law) if isinstance(law, LawReport) else law


def identity(law: Law | LawReport, given: str = "") -> dict[str, Any]:
    """Which law something is of, as plan.json and design.json say it; `given` is how the user named it, as a file."""
    law = as_law(law)
    return {
        "name": law.name,
        "given": given or law.name,
        "source": law.source,
        "equation": law.equation,
        "fingerprint": law.fingerprint,
        "n_counts": law.n_counts,
        "no_interval": law.no_interval,
    }


def minimise_over_size(law: Law, flops: float) -> tuple[float, float]:
    """The N and D of least predicted loss under C = 6 N D, for a law without a closed form."""
    from scipy.optimize import minimize_scalar

    def loss(log_n: float) -> float:
        n = float(np.exp(log_n))
        return float(law.predict(n, flops / (6 * n)))

    centre = 0.5 * np.log(flops / 6)
    found = minimize_scalar(loss, bounds=(centre - 20, centre + 20), method="bounded", options={"xatol": 1e-9})
    n = float(np.exp(found.x))
    return n, flops / (6 * n)


def least_loss(law: Law, unique_tokens: float | None = None) -> float:
    """What no size and no number of tokens goes below: the law's floor, in nats per token."""
    return float(law.predict(1e40, 1e40, unique_tokens))


__all__ = ["Counted", "Fitted", "Law", "Ranges", "Span", "as_law", "identity", "least_loss", "minimise_over_size"]
