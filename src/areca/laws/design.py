"""Which runs to add to a ladder, so that the prediction of a larger one narrows the most for its FLOPs.

Bayesian optimal design (Chaloner and Verdinelli 1995) for one quantity, ln L at a target (c-optimality). A sample of
the law that predicts the target high also predicts some affordable runs high, and others not: what those runs will say
tells of the target by as much as the two move together over the samples. With K the covariance of ln L over the
samples between all runs of a menu, k that with the target, v the target's variance and s the variance with which one
run tells (its noise, times what a robust objective wastes of it), the variance left after the runs of a set A is

    v - k_A' (K_AA + s I)^-1 k_A

For a law that is linear in its parameters this is g' (M + J_A' J_A / s)^-1 g, with M the information of the runs at
hand and J, g the derivatives at runs and target; no derivative is taken here, so every form of a law is served, the
bend within the samples' spread is in it, and forms that are averaged count as samples that disagree: runs that tell
them apart are worth what they take from that disagreement.
"""

from dataclasses import dataclass

import numpy as np

from areca.errors import ConfigError, FitError, check_positive
from areca.laws.predictive import Predictive
from areca.laws.report import LawReport


@dataclass(frozen=True)
class Menu:
    """P runs to choose from."""

    n_params: np.ndarray  # [P] without embeddings
    n_tokens: np.ndarray  # [P]
    flops: np.ndarray  # [P] what each costs

    def __len__(self) -> int:
        return len(self.flops)


@dataclass(frozen=True)
class Doubt:
    """What a law does not know of a menu and a target: second moments of ln L over its samples."""

    of_runs: np.ndarray  # [P, P]
    with_target: np.ndarray  # [P]
    of_target: float
    noise: float  # variance of one run's ln L about the law
    told: float  # the same as the fit's objective makes use of it: `noise` times `waste`

    @staticmethod
    def of(law: LawReport, menu: Menu, n_params: float, n_tokens: float) -> "Doubt":
        """FitError where the samples all agree, so that there is nothing to narrow, or where there are none."""
        predictive = Predictive.of(law)
        points = np.append(menu.n_params, n_params), np.append(menu.n_tokens, n_tokens)
        values = predictive.log_loss(*points)
        values = (values - predictive.weight @ values) * np.sqrt(predictive.weight)[:, None]
        moments = values.T @ values
        noise = float(predictive.weight @ predictive.sigma**2)
        if not moments[-1, -1] > 1e-12:
            raise FitError("the samples of the law agree on the target, so no run can narrow its interval.")
        told = noise * waste(law.parametric.objective, law.parametric.delta / np.sqrt(noise))
        return Doubt(moments[:-1, :-1], moments[:-1, -1], float(moments[-1, -1]), noise, told)

    def after(self, chosen: list[int]) -> tuple[np.ndarray, np.ndarray, float]:
        """(variance [P] of each run, covariance [P] with the target, the target's variance) once `chosen` are made."""
        if not chosen:
            return np.diag(self.of_runs), self.with_target, self.of_target
        rows = self.of_runs[chosen]
        matrix = rows[:, chosen] + self.told * np.eye(len(chosen))
        weights = np.linalg.solve(matrix, rows)  # [chosen, P]
        known = self.with_target[chosen]
        variance = np.diag(self.of_runs) - (rows * weights).sum(axis=0)
        left = self.of_target - known @ np.linalg.solve(matrix, known)
        return variance, self.with_target - known @ weights, float(left)

    def narrowing(self, chosen: list[int]) -> float:
        """The interval's expected width after `chosen` over its width now; one run's noise is in both."""
        return float(np.sqrt((self.after(chosen)[2] + self.noise) / (self.of_target + self.noise)))


def waste(objective: str, delta: float) -> float:
    """Variance of an estimate by this objective over that by least squares, for normal errors of standard deviation 1.

    Of Huber's function E[psi^2] / E[psi']^2 (Huber 1964), 1.57 for a small `delta`, as for absolute values: pi / 2.
    """
    from scipy.stats import norm

    if objective == "huber":
        inside = norm.cdf(delta) - 0.5
        squares = 2 * (inside - delta * norm.pdf(delta) + delta**2 * norm.sf(delta))
        return float(squares / (2 * inside) ** 2)
    return float(np.pi / 2) if objective == "lad" else 1.0


def propose(doubt: Doubt, menu: Menu, *, allowance: float, runs: int) -> list[int]:
    """At most `runs` of the menu, of `allowance` FLOPs together, that leave the target the least variance.

    Greedy twice, by what a run takes away and by that per FLOP, and from each by exchange: a run is put in another's
    place, or added, until nothing gains. No run is taken twice: a neighbour tells as much, and if the law's form is
    wrong at one place, not the same. ConfigError when the allowance pays for no run.
    """
    check_allowance(allowance, runs)
    if not len(menu) or menu.flops.min() > allowance:
        cheapest = f"; the cheapest of the menu costs {menu.flops.min():.3g}" if len(menu) else ""
        raise ConfigError(f"{allowance:.3g} FLOPs pay for no run of the ladder's kind{cheapest}.")
    starts = [_greedy(doubt, menu, allowance, runs, cost) for cost in (np.ones(len(menu)), menu.flops)]
    found = [_exchanged(doubt, menu, allowance, runs, start) for start in starts]
    return sorted(min(found, key=lambda chosen: doubt.after(chosen)[2]), key=lambda i: (menu.flops[i], i))


def check_allowance(allowance: float, runs: int) -> None:
    """ConfigError unless there is something to spend and a run to spend it on."""
    if runs < 1:
        raise ConfigError(f"runs is {runs}; at least one run must be allowed.")
    check_positive("the allowance in FLOPs", allowance, "3e13")


def _greedy(doubt: Doubt, menu: Menu, allowance: float, runs: int, cost: np.ndarray) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < runs:
        gain = _gain(doubt, menu, allowance, chosen) / cost
        best = int(gain.argmax())
        if not gain[best] > 0:
            break
        chosen.append(best)
    return chosen


def _exchanged(doubt: Doubt, menu: Menu, allowance: float, runs: int, chosen: list[int]) -> list[int]:
    left = doubt.after(chosen)[2]
    improved = True
    while improved:
        improved = False
        for place in range(min(len(chosen) + 1, runs)):  # the last place is free, where one is
            others = chosen[:place] + chosen[place + 1 :]
            gain = _gain(doubt, menu, allowance, others)
            best = int(gain.argmax())
            now = doubt.after(others)[2] - gain[best]
            if gain[best] > 0 and now < left * (1 - 1e-6):
                chosen, left, improved = [*others, best], now, True
    return chosen


def _gain(doubt: Doubt, menu: Menu, allowance: float, chosen: list[int]) -> np.ndarray:
    """[P] variance of the target that each further run takes away; 0 for those chosen and those not affordable."""
    variance, with_target, _ = doubt.after(chosen)
    gain = with_target**2 / (variance + doubt.told)
    gain[menu.flops > (allowance - menu.flops[chosen].sum()) * (1 + 1e-9)] = 0.0
    gain[chosen] = 0.0
    return gain
