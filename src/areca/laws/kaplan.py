"""Kaplan et al. 2020, "Scaling Laws for Neural Language Models" (arXiv:2001.08361): the laws and the recipe.

N is without embeddings, D, B and E in tokens, S in updates, C = 6 N B S in FLOPs or PF-days (8.64e19 FLOPs), losses in
nats per token of WebText2 at a context of 1,024.

    L(N, S_min) = (N_c / N)^a_N + (S_c / S_min)^a_S        equation 1.6: a run that is not data-limited
    B_crit(L)   = B* / L^(1 / a_B)                         equation 1.4
    S_min = S / (1 + B_crit / B),  C_min = C / (1 + B / B_crit)     equations 5.4 and 5.5
    L(N, D)     = [(N_c / N)^(a_N / a_D) + D_c / D]^a_D    equation 1.5: trained on D tokens until it overfits

The compute-efficient frontier comes twice and the two differ by about 2x in N at one PF-day: "fitted", power laws that
the paper drew through its runs (table 6), and "derived", what the first two laws give when minimised at fixed C_min.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from areca.counted import FlopsCount, flops_as
from areca.errors import ConfigError
from areca.laws.fits.compute import PF_DAY
from areca.laws.law import Counted, Ranges, minimise_over_size


@dataclass(frozen=True)
class Power:
    """coefficient x C^exponent with C in PF-days, as tables print it."""

    coefficient: float
    exponent: float

    def at(self, pf_days: Any) -> Any:
        return self.coefficient * np.asarray(pf_days, float) ** self.exponent


# L(N, S_min), table 3; B_crit, equation 5.3 and table 2's caption (the text of 5.3 rounds B* to 2e8).
A_N, A_S, N_C, S_C = 0.077, 0.76, 6.5e13, 2.1e3
A_B, B_STAR = 0.21, 2.1e8
# L(N, D), table 2.
DATA_A_N, DATA_A_D, DATA_N_C, DATA_D_C = 0.076, 0.103, 6.4e13, 1.8e13
# L(D) and L(C_min), tables 5 and 6: (D_c / D)^a_D and (C_c / C_min)^a_C.
L_OF_D_A, L_OF_D_C = 0.095, 5.4e13
L_OF_C_A, L_OF_C_C = 0.050, 3.1e8
# The fitted frontier, table 6, and the data it uses up: in one epoch (table 6), and by equation 6.7, D = 2 C_min / 6 N.
FITTED_N, FITTED_B, FITTED_S = Power(1.3e9, 0.73), Power(2.0e6, 0.24), Power(5.4e3, 0.03)
DATA_CURVES = {"one epoch, table 6": Power(2e10, 0.27), "equation 6.7": Power(4e10, 0.26)}
GUARD = (5e3, 0.74)  # equation 4.4: D of at least 5e3 N^0.74 keeps overfitting under the seeds' scatter
SEED_SCATTER = 0.02  # of the loss, section 4.2
EXCESS = A_N / A_S  # of the loss over the converged one where compute is best spent, appendix B.3: about 10%

MEASURED = Ranges(n_params=(768, 1.5e9), n_tokens=(2.2e7, 2.3e10), context=(1024, 1024), loss=(2.4, float("inf")))


def critical_batch(loss: Any, b_star: float = B_STAR, alpha: float = A_B) -> Any:
    """B_crit in tokens: with it a run takes twice the least updates and twice the least compute."""
    return b_star / np.asarray(loss, float) ** (1 / alpha)


def converged_loss(n_params: Any) -> Any:
    """(N_c / N)^a_N: what N parameters reach in ever more updates on ever new data."""
    return (N_C / np.asarray(n_params, float)) ** A_N


def loss_of_updates(n_params: Any, s_min: Any) -> Any:
    """L(N, S_min), equation 1.6."""
    return converged_loss(n_params) + (S_C / np.asarray(s_min, float)) ** A_S


def loss_of_data(n_params: Any, n_tokens: Any) -> Any:
    """L(N, D), equation 1.5: D tokens, as often as it takes until the held-out loss is least."""
    n, d = np.asarray(n_params, float), np.asarray(n_tokens, float)
    return ((DATA_N_C / n) ** (DATA_A_N / DATA_A_D) + DATA_D_C / d) ** DATA_A_D


def one_pass(n_params: Any, n_tokens: Any) -> np.ndarray:
    """L(N, S_min) of one pass over D tokens at the critical batch, where S_min = D / 2 B_crit(L).

    Loss stands on both sides: L = a + k L^-p with p = a_S / a_B. The left side less the right is increasing and
    concave, so Newton's steps from below rise to the root.
    """
    n, d = np.broadcast_arrays(np.asarray(n_params, float), np.asarray(n_tokens, float))
    a, power = converged_loss(n), A_S / A_B
    k = (2 * S_C * B_STAR / d) ** A_S
    loss = np.maximum(a, k ** (1 / (1 + power)))
    for _ in range(60):
        step = (loss - a - k * loss**-power) / (1 + power * k * loss ** (-power - 1))
        loss = loss - step
        if np.all(np.abs(step) <= 1e-15 * loss):
            break
    return loss


@dataclass(frozen=True)
class KaplanLaw:
    """The loss of one run at the critical batch by equations 1.6 and 1.4, and no lower than its data allow (1.5).

    L(N, D) alone is the loss of a model trained on D tokens until it overfits; a run over them once ends higher.
    """

    name: str = "kaplan"
    source: str = "Kaplan et al. 2020, equations 1.4 to 1.6, tables 2 and 3"
    equation: str = "L = (N_c / N)^.077 + (S_c / S_min)^.76 at B = B_crit(L), at least L(N, D)"
    fingerprint: str = ""
    n_counts: Counted = "non-embedding"
    flops_counts: FlopsCount = "6nd"
    ranges: Ranges = MEASURED
    knows_repeats: bool = True
    no_interval: str = "the paper prints no uncertainty of its constants"

    def flops_of(self, n_params: float, n_tokens: float, exact: float) -> float:
        return flops_as(self.flops_counts, n_params, n_tokens, exact)

    def predict(self, n_params: Any, n_tokens: Any, unique_tokens: float | None = None) -> np.ndarray:
        d = np.asarray(n_tokens, float)
        unique = d if unique_tokens is None else np.minimum(d, unique_tokens)
        return np.maximum(one_pass(n_params, d), loss_of_data(n_params, unique))

    def interval(
        self,
        n_params: float,
        n_tokens: float,
        level: float,
        flops: float | None = None,
        unique_tokens: float | None = None,
    ) -> tuple[float, float] | None:
        return None

    def frontier(self, flops: float) -> tuple[float, float]:
        return minimise_over_size(self, flops)


# The frontier


@dataclass(frozen=True)
class Recipe:
    """What to train for C_min PF-days, at the critical batch: twice C_min of compute, twice S_min of updates."""

    which: Literal["fitted", "derived"]
    source: str
    c_min_pf_days: float
    n_params: float
    batch_tokens: float  # B_crit
    s_min: float
    steps: float  # at that batch: 2 S_min
    n_tokens: float  # batch x steps
    loss: float


def fitted(c_min_pf_days: float) -> Recipe:
    """The frontier as table 6 prints it."""
    c = c_min_pf_days
    s_min = float(FITTED_S.at(c))
    data = float(DATA_CURVES["one epoch, table 6"].at(c))
    loss = float((L_OF_C_C / c) ** L_OF_C_A)
    source = "power laws drawn through the runs, table 6"
    return Recipe(
        "fitted", source, c, float(FITTED_N.at(c)), float(FITTED_B.at(c)), s_min, 2 * s_min, data, loss
    )  # fmt: skip


def derived(c_min_pf_days: float) -> Recipe:
    """The frontier by minimising L(N, S_min) over N at fixed C_min = 6 N B_crit(L) S_min, numerically.

    For each N the loss is where spending all of C_min ends; of these the least is taken. ConfigError for a C_min that
    is not a positive number.
    """
    from scipy.optimize import brentq, minimize_scalar

    if not 0 < c_min_pf_days < 1e25:
        raise ConfigError(f"C_min is {c_min_pf_days} PF-days; it must be a positive number.")
    flops = c_min_pf_days * PF_DAY

    def updates(n: float, loss: float) -> float:
        return flops / (6 * n * float(critical_batch(loss)))

    def reached(log_n: float) -> float:
        n = float(np.exp(log_n))
        low = float(converged_loss(n))

        def short(loss: float) -> float:
            return float(loss_of_updates(n, updates(n, loss))) - loss

        high = 2 * low
        while short(high) > 0:
            high *= 2
        return brentq(short, low, high, xtol=1e-15, rtol=1e-15)  # type: ignore[return-value]

    guess = float(np.log(FITTED_N.at(c_min_pf_days)))
    best = minimize_scalar(reached, bounds=(guess - 8, guess + 8), method="bounded", options={"xatol": 1e-10})
    n, loss = float(np.exp(best.x)), float(best.fun)
    s_min, batch = updates(n, loss), float(critical_batch(loss))
    source = "L(N, S_min) with B_crit(L) minimised at fixed C_min"
    return Recipe("derived", source, c_min_pf_days, n, batch, s_min, 2 * s_min, 2 * s_min * batch, loss)


@dataclass(frozen=True)
class ClosedForm:
    """The derived frontier on paper, appendix B: L = (C_c / C)^a_C and what B.9 and B.10 say of N and S."""

    exponent: float = 1 / (1 / A_S + 1 / A_B + 1 / A_N)  # a_C
    c_c_flops: float = 6 * N_C * B_STAR * S_C * (1 + A_N / A_S) ** (1 / A_S + 1 / A_N) * (A_S / A_N) ** (1 / A_S)  # B.8

    def at(self, c_min_pf_days: float) -> tuple[float, float, float]:
        """(N, S_min, L)."""
        share = c_min_pf_days * PF_DAY / self.c_c_flops
        n = N_C * share ** (self.exponent / A_N) * (1 + A_N / A_S) ** (1 / A_N)
        s = self.c_c_flops / (6 * N_C * B_STAR) * (1 + A_N / A_S) ** (-1 / A_N) * share ** (self.exponent / A_S)
        return n, s, share**-self.exponent


# What follows from the laws


def adjusted(*, n_params: float, batch_tokens: float, steps: float, loss: float) -> dict[str, float]:
    """S_min, E_min and C_min (FLOPs) of a run that reached `loss`: what it would have taken at the best batch for each.

    They satisfy (S / S_min - 1) (E / E_min - 1) = 1 (equation 5.1), E = B S tokens.
    """
    ratio = float(critical_batch(loss)) / batch_tokens
    return {
        "s_min": steps / (1 + ratio),
        "e_min": batch_tokens * steps / (1 + 1 / ratio),
        "c_min": 6 * n_params * batch_tokens * steps / (1 + 1 / ratio),
    }


def stopping_at(excess: float, loss: float) -> tuple[float, float, float]:
    """(N, S_min, C_min in FLOPs) of the run that reaches `loss` when it is `excess` above its converged loss."""
    if not 0 < excess < float("inf"):
        raise ConfigError(f"the loss to stop above the converged one is {excess}; it must be a positive share.")
    n = N_C / (loss / (1 + excess)) ** (1 / A_N)
    s_min = S_C / (loss * excess / (1 + excess)) ** (1 / A_S)
    return n, s_min, 6 * n * float(critical_batch(loss)) * s_min


def against_convergence(within: float = 0.02, loss: float = 3.0) -> dict[str, float]:
    """Stopping at a_N / a_S against training to `within` of convergence, both to the same loss (appendix B.4)."""
    n, s, c = stopping_at(EXCESS, loss)
    n_other, s_other, c_other = stopping_at(within, loss)
    return {"parameters": n / n_other, "fewer_updates": s_other / s, "compute_saved": 1 - c / c_other}


def tokens_against_overfitting(n_params: Any, excess: float = SEED_SCATTER) -> Any:
    """The D from which L(N, D) is within `excess` of L(N, infinity), by equation 4.3."""
    return DATA_D_C / ((1 + excess) ** (1 / DATA_A_D) - 1) * (np.asarray(n_params) / DATA_N_C) ** (DATA_A_N / DATA_A_D)


def guard_tokens(n_params: Any) -> Any:
    """5e3 N^0.74, as the paper rounds it (equation 4.4)."""
    return GUARD[0] * np.asarray(n_params, float) ** GUARD[1]


@dataclass(frozen=True)
class Breakdown:
    """Where the fitted L(C_min) would go below what its data allow, L(D(C_min)): there the laws contradict (6.3)."""

    curve: str  # which D(C_min)
    pf_days: float
    n_params: float
    n_tokens: float
    loss: float


def breakdown(curve: str) -> Breakdown:
    """The crossing of L(C_min) with L(D), D along one of DATA_CURVES, by root finding."""
    from scipy.optimize import brentq

    data = DATA_CURVES[curve]

    def gap(log_c: float) -> float:
        c = float(np.exp(log_c))
        return L_OF_C_A * np.log(L_OF_C_C / c) - L_OF_D_A * np.log(L_OF_D_C / float(data.at(c)))

    c = float(np.exp(brentq(gap, np.log(1e-6), np.log(1e12))))  # type: ignore[arg-type]
    return Breakdown(curve, c, float(FITTED_N.at(c)), float(data.at(c)), float((L_OF_C_C / c) ** L_OF_C_A))
