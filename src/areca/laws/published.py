"""Laws of the literature by name, each constant once and with its source.

N counts all parameters in Hoffmann's, Besiroglu's and Muennighoff's laws, and those without embeddings in Kaplan's.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.counted import FlopsCount, flops_as
from areca.errors import ConfigError, closest
from areca.laws.kaplan import KaplanLaw
from areca.laws.law import Counted, Law, Ranges


@dataclass(frozen=True)
class Chinchilla:
    """L(N, D) = E + A / N^alpha + B / D^beta, nats per token (Hoffmann et al. 2022, approach 3)."""

    name: str
    source: str
    A: float
    B: float
    E: float
    alpha: float
    beta: float
    ranges: Ranges
    no_interval: str
    n_counts: Counted = "total"
    knows_repeats: bool = False
    fingerprint: str = ""
    flops_counts: FlopsCount = "exact"

    def flops_of(self, n_params: float, n_tokens: float, exact: float) -> float:
        return flops_as(self.flops_counts, n_params, n_tokens, exact)

    @property
    def equation(self) -> str:
        return f"L = {self.E:.5g} + {self.A:.5g} / N^{self.alpha:.4g} + {self.B:.5g} / D^{self.beta:.4g}"

    def predict(self, n_params: Any, n_tokens: Any, unique_tokens: float | None = None) -> np.ndarray:
        n, d = np.asarray(n_params, float), np.asarray(n_tokens, float)
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta

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
        """In closed form (equation 4)."""
        both = self.alpha + self.beta
        n = balance(self) * (flops / 6) ** (self.beta / both)
        return n, flops / (6 * n)


@dataclass(frozen=True)
class DataConstrained(Chinchilla):
    """Chinchilla's law for repeated data: a token seen again, a parameter beyond what U calls for, fades in worth.

    With U unique tokens of D, R_D = D / U - 1 repetitions and R_N = N / U_N - 1, U_N being the best size for U tokens:

        D' = U + U R_D* (1 - exp(-R_D / R_D*)),  N' = U_N + U_N R_N* (1 - exp(-R_N / R_N*))

    and L = E + A / N'^alpha + B / D'^beta (Muennighoff et al. 2023, equations 5 and 6).
    """

    r_d: float = 15.387756
    r_n: float = 5.309743
    knows_repeats: bool = True
    flops_counts: FlopsCount = "6nd"  # of the runs fitted C is 6 N D, 4.25e15 for the smallest

    @property
    def equation(self) -> str:
        return (
            f"L = {self.E:.5g} + {self.A:.5g} / N'^{self.alpha:.4g} + {self.B:.5g} / D'^{self.beta:.4g}, D' and N' of "
            f"R_D* {self.r_d:.4g} and R_N* {self.r_n:.4g}"
        )

    def effective(self, n_params: Any, n_tokens: Any, unique_tokens: float | None = None) -> tuple[Any, Any]:
        """(N', D')."""
        n, d = np.asarray(n_params, float), np.asarray(n_tokens, float)
        u = d if unique_tokens is None else np.minimum(d, unique_tokens)
        u_n = np.minimum(n, self.best_size(u))
        return _faded(n, u_n, self.r_n), _faded(d, u, self.r_d)

    def best_size(self, n_tokens: Any) -> Any:
        """The N for which D tokens are compute-optimal when all are new."""
        g = balance(self) ** ((self.alpha + self.beta) / self.alpha)
        return g * np.asarray(n_tokens, float) ** (self.beta / self.alpha)

    def predict(self, n_params: Any, n_tokens: Any, unique_tokens: float | None = None) -> np.ndarray:
        n, d = self.effective(n_params, n_tokens, unique_tokens)
        return self.E + self.A * n**-self.alpha + self.B * d**-self.beta


def balance(law: Chinchilla) -> float:
    """G of Hoffmann et al.'s equation 4: N_opt = G (C / 6)^(beta / (alpha + beta))."""
    return (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))


def _faded(all_of_them: Any, fresh: Any, decay: float) -> Any:
    """What repetitions leave: fresh (1 + R* (1 - exp(-R / R*)))."""
    return fresh * (1 + decay * -np.expm1(-(all_of_them / fresh - 1) / decay))


_HOFFMANN = Ranges(n_params=(7e7, 1.61e10), n_tokens=(5e9, 5e11), flops=(6e18, 3e21))  # abstract, figures 2 to 4
_UNSAID = "the paper prints none for predictions"

LAWS: dict[str, Law] = {
    law.name: law
    for law in (
        KaplanLaw(),
        Chinchilla(
            "chinchilla", "Hoffmann et al. 2022, approach 3, the constants unrounded (their LaTeX source)",
            A=float(np.exp(6.0073404)), B=float(np.exp(6.0179186)), E=float(np.exp(0.5267228)),
            alpha=0.33917084, beta=0.2849083, ranges=_HOFFMANN, no_interval=_UNSAID,
        ),
        Chinchilla(
            "chinchilla-rounded", "Hoffmann et al. 2022, approach 3, the constants as printed (equation 10)",
            A=406.4, B=410.7, E=1.69, alpha=0.34, beta=0.28, ranges=_HOFFMANN, no_interval=_UNSAID,
        ),
        Chinchilla(
            "besiroglu", "Besiroglu et al. 2024, the replication of Hoffmann et al.'s approach 3",
            A=482.006, B=2085.43, E=1.81686, alpha=0.34781, beta=0.36585,
            # Of the 240 points fitted.
            ranges=Ranges((5.73e7, 1.62e10), (8.19e8, 3.18e11), (1.39e18, 1.3e22)),
            # A 124.5, B 1293, E .0257, alpha .0154, beta .0206; ln A and alpha move together, by .999.
            no_interval="standard errors are published without the correlations that a prediction's error needs",
        ),
        DataConstrained(
            "data-constrained", "Muennighoff et al. 2023, equations 5 and 6",
            A=float(np.exp(6.255414)), B=float(np.exp(7.3049974)), E=float(np.exp(0.6254804)),
            alpha=0.3526596, beta=0.3526596,
            # Of the 182 runs fitted; N with embeddings (7.1M of width 128 are 6.4M of vocabulary).
            ranges=Ranges((7.09e6, 8.68e9), (1e8, 9e11), (4.25e15, 9.26e21)), no_interval=_UNSAID,
        ),
    )
}  # fmt: skip


def published(name: str) -> Law:
    """The law of that name; ConfigError names the closest for one that there is not."""
    if name not in LAWS:
        raise ConfigError(
            f"there is no law {name!r}{closest(name, LAWS)}; name one of {', '.join(LAWS)}, or a law.json or runs."
        )
    return LAWS[name]
