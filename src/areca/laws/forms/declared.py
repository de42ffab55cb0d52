"""The laws of the papers, each a declared `Form`; `areca.laws.forms.catalog` finds them by name.

N counts parameters without embeddings unless a paper counts all; D tokens, C training FLOPs, S updates, B tokens in a
step. Losses are nats per token.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from areca.laws.forms import Form, exponent, positive, real, scale

SMALL = (0.03, 0.06, 0.12, 0.25, 0.5)  # starts for Kaplan's exponents


def _power(base: Any, power: Any) -> Any:
    """base^power for positive bases: quicker than ** in a compiled program."""
    return jnp.exp(power * jnp.log(base))


# ---- Kaplan et al. 2020


def _power_law(name: str, of: str, letter: str, equation: str, source: str, domain: str) -> Form:
    c, a = f"{letter}_c", f"alpha_{letter}"
    unit = {"n_params": "parameters", "n_tokens": "tokens", "flops": "FLOPs", "flops_min": "FLOPs"}[of]

    def predict(p: Any, x: Any) -> Any:
        return _power(getattr(p, c) / getattr(x, of), getattr(p, a))

    return Form(
        name, equation, (of,), (scale(c, unit, of=of, exponent=a), exponent(a, low=0.001, starts=SMALL)), predict,
        source=f"Kaplan et al. 2020, {source}", domain=domain,
    )  # fmt: skip


KAPLAN_N = _power_law(
    "kaplan-n", "n_params", "N", "L(N) = (N_c / N)^alpha_N", "equation 1.1", "trained to convergence on enough data"
)
KAPLAN_D = _power_law(
    "kaplan-d", "n_tokens", "D", "L(D) = (D_c / D)^alpha_D", "equation 1.2", "large models, stopped early"
)
KAPLAN_C = _power_law(
    "kaplan-c",
    "flops",
    "C",
    "L(C) = (C_c / C)^alpha_C",
    "section 3.3",
    "the best size of each budget, at a fixed batch",
)
KAPLAN_C_MIN = _power_law(
    "kaplan-c-min", "flops_min", "C", "L(C_min) = (C_c / C_min)^alpha_C", "equation 1.3",
    "the best size of each budget, C_min = C / (1 + B / B_crit)",
)  # fmt: skip
KAPLAN_ND = Form(
    name="kaplan-nd",
    equation="L(N, D) = [(N_c / N)^(alpha_N / alpha_D) + D_c / D]^alpha_D",
    inputs=("n_params", "n_tokens"),
    parameters=(
        scale("N_c", "parameters", of="n_params", exponent="alpha_N"),
        scale("D_c", "tokens", of="n_tokens", exponent="alpha_D"),
        exponent("alpha_N", low=0.001, starts=SMALL),
        exponent("alpha_D", low=0.001, starts=SMALL),
    ),
    predict=lambda p, x: _power(_power(p.N_c / x.n_params, p.alpha_N / p.alpha_D) + p.D_c / x.n_tokens, p.alpha_D),
    domain="stopped early where data are few",
    source="Kaplan et al. 2020, equation 1.5",
)
KAPLAN_NS = Form(
    name="kaplan-ns",
    equation="L(N, S_min) = (N_c / N)^alpha_N + (S_c / S_min)^alpha_S",
    inputs=("n_params", "steps_min"),
    parameters=(
        scale("N_c", "parameters", of="n_params", exponent="alpha_N"),
        scale("S_c", "updates", of="steps_min", exponent="alpha_S"),
        exponent("alpha_N", low=0.001, starts=SMALL),
        exponent("alpha_S", low=0.01, starts=(0.3, 0.6, 0.9, 1.3)),
    ),
    predict=lambda p, x: _power(p.N_c / x.n_params, p.alpha_N) + _power(p.S_c / x.steps_min, p.alpha_S),
    domain="after warm-up, data without end, S_min = S / (1 + B_crit / B)",
    source="Kaplan et al. 2020, equation 1.6",
)
B_CRIT = Form(
    name="b-crit",
    equation="B_crit(L) = B_star / L^(1 / alpha_B)",
    inputs=("loss",),
    parameters=(
        positive("B_star", "tokens", starts=(1e3, 1e5, 1e7, 1e9)),
        exponent("alpha_B", starts=(0.1, 0.2, 0.4, 0.8)),
    ),
    predict=lambda p, x: p.B_star * _power(x.loss, -1 / p.alpha_B),
    response="b_crit",
    response_unit="tokens",
    domain="within the losses measured",
    source="Kaplan et al. 2020, equation 1.4",
    derived={"loss_fall_that_doubles_b_crit": lambda p: 1 - 2.0**-p.alpha_B},
)

# ---- Hoffmann et al. 2022


def _chinchilla(p: Any, x: Any) -> Any:
    of_n, of_d = jnp.log(p.A) - p.alpha * jnp.log(x.n_params), jnp.log(p.B) - p.beta * jnp.log(x.n_tokens)
    return p.E + jnp.exp(of_n) + jnp.exp(of_d)


def _coupled(p: Any, x: Any) -> Any:
    of_n, of_d = jnp.log(p.A) - p.alpha * jnp.log(x.n_params), jnp.log(p.B) - p.beta * jnp.log(x.n_tokens)
    return p.E + jnp.exp(jnp.logaddexp(p.q * of_n, p.q * of_d) / p.q)


_FRONTIER: dict[str, Callable[[Any], Any]] = {
    "n_exponent": lambda p: p.beta / (p.alpha + p.beta),
    "d_exponent": lambda p: p.alpha / (p.alpha + p.beta),
}
CHINCHILLA = Form(
    name="chinchilla",
    equation="L(N, D) = E + A / N^alpha + B / D^beta",
    inputs=("n_params", "n_tokens"),
    parameters=(
        positive("A", "nats x parameters^alpha"), positive("B", "nats x tokens^beta"), positive("E", "nats"),
        exponent("alpha"), exponent("beta"),
    ),
    predict=_chinchilla,
    linear=("A", "B", "E"),
    domain="every token new, each run's decay ended at its last token",
    source="Hoffmann et al. 2022, approach 3, equation 2",
    derived=_FRONTIER,
)  # fmt: skip


def coupled(q: float) -> Form:
    """Chinchilla's law with its two terms coupled: E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q); q = 1 is theirs."""
    if q == 1.0:
        return CHINCHILLA
    return Form(
        name=f"chinchilla-q{q:g}",
        equation="L(N, D) = E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q)",
        inputs=CHINCHILLA.inputs,
        parameters=CHINCHILLA.parameters,
        predict=_coupled,
        constants={"q": float(q)},
        domain=CHINCHILLA.domain,
        source="between Hoffmann et al. 2022 and Kaplan et al. 2020, equation 1.5",
        derived=_FRONTIER,
        begin=CHINCHILLA,
    )


N_OPT = Form(
    name="n-opt",
    equation="N_opt(C) = k C^a",
    inputs=("flops",),
    parameters=(positive("k", "parameters", starts=(1e-6, 1e-3, 1.0), low=1e-60), exponent("a")),
    predict=lambda p, x: p.k * _power(x.flops, p.a),
    response="n_params",
    response_unit="parameters",
    source="Hoffmann et al. 2022, approaches 1 and 2",
)
D_OPT = Form(
    name="d-opt",
    equation="D_opt(C) = k C^b",
    inputs=("flops",),
    parameters=(positive("k", "tokens", starts=(1e-6, 1e-3, 1.0), low=1e-60), exponent("b")),
    predict=lambda p, x: p.k * _power(x.flops, p.b),
    response="n_tokens",
    response_unit="tokens",
    source="Hoffmann et al. 2022, approaches 1 and 2",
)

# ---- repeated data, floors, breaks, scores, hyperparameters


def effective(resource: Any, unique: Any, half_life: Any) -> Any:
    """U + U R* (1 - exp(-R / R*)) with R = resource / U - 1 repetitions: what repeated data (or excess parameters) are
    worth as new ones (Muennighoff et al. 2023, equation 5)."""
    repeats = jnp.maximum(resource / unique - 1.0, 0.0)
    return unique + unique * half_life * -jnp.expm1(-repeats / half_life)


def _data_constrained(p: Any, x: Any) -> Any:
    unique_d = jnp.minimum(x.n_tokens, x.unique_tokens)
    # The best N for U tokens: on the frontier alpha A / N^alpha = beta B / D^beta.
    best = jnp.exp((jnp.log(p.alpha * p.A) - jnp.log(p.beta * p.B) + p.beta * jnp.log(unique_d)) / p.alpha)
    unique_n = jnp.minimum(x.n_params, best)
    n, d = effective(x.n_params, unique_n, p.R_N), effective(x.n_tokens, unique_d, p.R_D)
    return p.E + p.A * _power(n, -p.alpha) + p.B * _power(d, -p.beta)


DATA_CONSTRAINED = Form(
    name="data-constrained",
    equation="L = E + A / N'^alpha + B / D'^beta, D' = U + U R_D (1 - exp(-(D / U - 1) / R_D)), N' alike",
    inputs=("n_params", "n_tokens", "unique_tokens"),
    parameters=(
        *CHINCHILLA.parameters,
        positive("R_D", "repetitions", starts=(3.0, 8.0, 20.0, 50.0, 120.0), low=0.1, high=1e4),
        positive("R_N", "repetitions", starts=(1.5, 4.0, 10.0, 30.0), low=0.1, high=1e4),
    ),
    predict=_data_constrained,
    domain="up to a few hundred passes over the same text; every count of N alike",
    source="Muennighoff et al. 2023, equations 5 and 6",
    derived=_FRONTIER,
    begin=CHINCHILLA,
)
COMPUTE_FLOOR = Form(
    name="compute-floor",
    equation="L(C) = E + (C_c / C)^a",
    inputs=("flops",),
    parameters=(positive("E", "nats"), scale("C_c", "FLOPs", of="flops", exponent="a"), exponent("a", starts=SMALL)),
    predict=lambda p, x: p.E + _power(p.C_c / x.flops, p.a),
    domain="the frontier: the lowest loss of each budget",
    source="Henighan et al. 2020, equation 1.1",
)
BROKEN = Form(
    name="broken",
    equation="L(C) = E + k C^-a (1 + (C / C_1)^(1/f))^(-b f)",
    inputs=("flops",),
    parameters=(
        positive("E", "nats"),
        positive("k", "nats x FLOPs^a", starts=(1e1, 1e2, 1e3)),
        scale("C_1", "FLOPs", of="flops", exponent=""),
        exponent("a", low=0.0001, starts=(0.03, 0.1, 0.3)),
        real("b", low=-1.5, high=1.5, starts=(-0.1, 0.1)),
        real("f", low=0.05, high=3.0, starts=(0.3,)),
    ),
    predict=lambda p, x: (
        p.E + p.k * jnp.exp(-p.a * jnp.log(x.flops) - p.b * p.f * _softplus(jnp.log(x.flops / p.C_1) / p.f))
    ),
    linear=("E", "k"),
    domain="one smooth break, within the rows; beyond them the second slope goes on",
    source="Caballero et al. 2023, equation 1 with n = 1",
)


def _softplus(z: Any) -> Any:
    return jnp.logaddexp(0.0, z)


SCORE = Form(
    name="score",
    equation="score(C) = chance + (ceiling - chance) / (1 + (C_mid / C)^slope)",
    inputs=("flops",),
    parameters=(
        real("chance", "score", low=0.0, high=1.0, starts=(0.02, 0.25)),
        real("ceiling", "score", low=0.0, high=1.0, starts=(0.7, 0.98)),
        scale("C_mid", "FLOPs", of="flops", exponent=""),
        exponent("slope", low=0.01, high=10.0, starts=(0.2, 0.6, 2.0)),
    ),
    predict=lambda p, x: p.chance + (p.ceiling - p.chance) / (1 + _power(p.C_mid / x.flops, p.slope)),
    response="score",
    response_unit="score, 0 to 1",
    compare="linear",
    domain="one task's score as a share of 1, against training compute",
    source="a logistic curve in ln C, as in Owen 2024",
)


def _of_n_and_d(name: str, response: str, unit: str, a: float, b: float) -> Form:
    exponents = tuple(real(n, low=-3.0, high=3.0, starts=(start, 0.0)) for n, start in (("a", a), ("b", b)))
    return Form(
        name=name,
        equation=f"{response}(N, D) = k N^a D^b",
        inputs=("n_params", "n_tokens"),
        parameters=(positive("k", unit, starts=(1e-3, 1.0, 1e3), low=1e-60), *exponents),
        predict=lambda p, x: p.k * jnp.exp(p.a * jnp.log(x.n_params) + p.b * jnp.log(x.n_tokens)),
        response=response,
        response_unit=unit,
        domain="the best value of each (N, D), one optimizer and schedule",
        source="Li et al. 2025 (Step Law), equation 1",
    )


LEARNING_RATE = _of_n_and_d("learning-rate", "learning_rate", "per step", -0.7, 0.3)
BATCH = _of_n_and_d("batch", "batch_tokens", "tokens", 0.0, 0.6)
