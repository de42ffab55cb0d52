"""Twenty settings with known laws: what `benchmarks/coverage.py` draws tables from.

Seventeen ladders, isoFLOP-like (N about the best size of each budget, by equal factors), and three tables of random
(N, D). Laws: those of the papers, those of our own small ladders, and eight drawn once.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

NOISE = 0.005  # standard deviation of ln L of one run
SEED = 2026  # of the laws that are drawn and of the random tables


@dataclass(frozen=True)
class Setting:
    """A law (ln A, ln B, ln E, alpha, beta) and the runs it is to be found from."""

    name: str
    theta: tuple[float, ...]
    n: np.ndarray  # [runs] parameters
    d: np.ndarray  # [runs] tokens
    budget: np.ndarray | None  # [runs] FLOPs a run was meant for; None for a table without budgets

    @property
    def flops(self) -> np.ndarray:
        return 6 * self.n * self.d

    @property
    def top(self) -> float:
        """The largest budget."""
        return float(self.flops.max())

    def log_loss(self, n: np.ndarray, d: np.ndarray) -> np.ndarray:
        a, b, e, alpha, beta = self.theta
        return np.log(np.exp(e) + np.exp(a) * n**-alpha + np.exp(b) * d**-beta)

    def best_n(self, flops: float) -> float:
        """N of least loss under C = 6 N D, where the derivative of the loss along the budget is 0."""
        return best_n(np.array(self.theta), flops)

    @cached_property
    def jacobian(self) -> np.ndarray:
        """[runs, 5]: derivatives of ln L by the parameters, at the truth."""
        a, b, e, alpha, beta = self.theta
        of_n, of_d = np.exp(a) * self.n**-alpha, np.exp(b) * self.d**-beta
        loss = np.exp(e) + of_n + of_d
        return np.stack(
            [of_n / loss, of_d / loss, np.exp(e) / loss, -np.log(self.n) * of_n / loss, -np.log(self.d) * of_d / loss],
            1,
        )

    def least_error(self, flops: float, noise: float = NOISE) -> float:
        """The least standard deviation of ln N_opt any unbiased estimator has here (Cramer and Rao), to first order."""
        covariance = noise**2 * np.linalg.inv(self.jacobian.T @ self.jacobian)
        steps = 1e-6 * np.eye(5)
        theta = np.array(self.theta)
        slope = np.array([np.log(best_n(theta + s, flops) / best_n(theta - s, flops)) / 2e-6 for s in steps])
        return float(np.sqrt(slope @ covariance @ slope))


def best_n(theta: np.ndarray, flops: float) -> float:
    """N = (alpha A / beta B)^(1 / (alpha + beta)) (C / 6)^(beta / (alpha + beta))."""
    a, b, _, alpha, beta = theta
    return float(np.exp((np.log(alpha / beta) + a - b + beta * np.log(flops / 6)) / (alpha + beta)))


LAWS = {
    "chinchilla": (np.log(406.4), np.log(410.7), np.log(1.69), 0.34, 0.28),  # Hoffmann et al. 2022
    "besiroglu": (np.log(482.01), np.log(2085.43), np.log(1.8172), 0.3478, 0.3658),  # the replication, 2024
    "muennighoff": (6.255414, 7.3049974, 0.6254804, 0.3526596, 0.3526596),  # 2023
    "quickstart": (np.log(60), np.log(900), np.log(2.0), 0.38, 0.45),  # ladders of this size: N 1e4 to 1e6
    "bytes": (np.log(30), np.log(400), np.log(1.0), 0.30, 0.40),  # the same, a lower floor
}
FIRST = {"quickstart": 3e11, "bytes": 3e11}  # FLOPs of the smallest budget; 1e18 otherwise


def ladder(law: str, budgets: int, sizes: int, step: float, spread: float) -> Setting:
    """`budgets` by factors of `step`, each with `sizes` from best / spread to best x spread."""
    theta, first = LAWS[law], FIRST.get(law, 1e18)
    flops = np.repeat(first * step ** np.arange(budgets), sizes)
    best = np.array([best_n(np.array(theta), c) for c in flops])
    n = best * np.tile(np.geomspace(1 / spread, spread, sizes), budgets)
    return Setting(f"{law}: {budgets} x {sizes}, steps of {step:g}, N / {spread:g} to x {spread:g}", theta, n,
                   flops / 6 / n, flops)  # fmt: skip


def scattered(law: str, rows: int, generator: np.random.Generator) -> Setting:
    """N and D drawn alone, three and a half powers of e each to both sides of a middle: no budgets."""
    theta, first = LAWS[law], FIRST.get(law, 1e18)
    middle = best_n(np.array(theta), 30 * first)
    n = middle * np.exp(generator.uniform(-3.5, 3.5, rows))
    d = 30 * first / 6 / middle * np.exp(generator.uniform(-3.5, 3.5, rows))
    return Setting(f"{law}: {rows} at random", theta, n, d, None)


def draw_law(generator: np.random.Generator) -> tuple[float, ...]:
    """Exponents from .25 to .5, a floor of 1 to 2.2 nats, terms of .3 to 1.2 nats each at N 1e8, D 2e9."""
    alpha, beta = generator.uniform(0.25, 0.5, 2)
    at_n, at_d = generator.uniform(0.3, 1.2, 2)
    floor = generator.uniform(1.0, 2.2)
    return (
        float(np.log(at_n) + alpha * np.log(1e8)),
        float(np.log(at_d) + beta * np.log(2e9)),
        float(np.log(floor)),
        float(alpha),
        float(beta),
    )


def settings() -> list[Setting]:
    """The twenty."""
    generator = np.random.default_rng(SEED)
    for k in range(8):
        LAWS[f"drawn {k + 1}"] = draw_law(generator)
    return [
        ladder("quickstart", 3, 4, 4, 4),
        ladder("quickstart", 3, 5, 3, 4),
        ladder("bytes", 3, 5, 2.5, 4),
        ladder("quickstart", 4, 5, 3, 4),
        ladder("chinchilla", 3, 5, 10, 8),
        ladder("chinchilla", 4, 6, 4, 4),
        ladder("chinchilla", 6, 6, 3, 8),
        ladder("besiroglu", 5, 6, 4, 8),
        ladder("besiroglu", 9, 6, 3, 8),
        ladder("muennighoff", 4, 5, 4, 8),
        ladder("drawn 1", 3, 5, 4, 8),
        ladder("drawn 2", 4, 5, 4, 8),
        ladder("drawn 3", 4, 6, 4, 8),
        ladder("drawn 4", 5, 5, 4, 8),
        ladder("drawn 5", 5, 6, 4, 16),
        ladder("drawn 6", 6, 7, 4, 8),
        ladder("drawn 7", 6, 10, 3, 8),
        scattered("besiroglu", 24, generator),
        scattered("chinchilla", 40, generator),
        scattered("drawn 8", 60, generator),
    ]
