"""Ladders drawn from a law whose parameters are known: the yardstick for fits and intervals."""

from dataclasses import dataclass

import numpy as np

from areca.laws import Observations


@dataclass(frozen=True)
class Truth:
    """L = E + A / N^alpha + B / D^beta with terms of one to two nats at N 1e5, D 2e6."""

    A: float
    B: float
    E: float
    alpha: float
    beta: float

    @staticmethod
    def draw(generator: np.random.Generator) -> "Truth":
        e, alpha, beta = generator.uniform([1.5, 0.3, 0.3], [3, 0.5, 0.5])
        at_n, at_d = generator.uniform(0.8, 2, 2)
        return Truth(at_n * 1e5**alpha, at_d * 2e6**beta, e, alpha, beta)

    def loss(self, n, d):
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta

    def optimum(self, flops):
        """N and D of least loss with C = 6 N D, by brute force (not by the closed form the code uses)."""
        n = np.exp(np.linspace(np.log(1e2), np.log(1e9), 40_001))
        n = n[np.argmin(self.loss(n, flops / 6 / n))]
        return n, flops / 6 / n

    def ladder(self, generator: np.random.Generator, *, budgets: int, sizes: int, noise: float) -> Observations:
        """`budgets` from 3e11 FLOPs in steps of 3; `sizes` from a quarter to four times the best, jittered."""
        n, c = [], []
        for k in range(budgets):
            flops = 3e11 * 3.0**k
            best, _ = self.optimum(flops)
            spread = np.geomspace(0.25, 4, sizes) * np.exp(generator.normal(0, 0.2, sizes))
            n += list(best * spread)
            c += [flops] * sizes
        n, c = np.array(n), np.array(c)
        d = c / 6 / n
        return Observations(n, d, c, self.loss(n, d) * np.exp(noise * generator.standard_normal(len(n))))
