"""Many small robust regressions at once: one compiled program a form, damped Newton over a batch of problems.

The objective is a weighted sum of Huber's function of the residual; least squares is a delta larger than any residual,
least absolute deviations the limit of a small one. Derivatives come from the form itself by differentiation of the
program, exact, in float64. Newton's matrix is damped by the reweighted-least-squares matrix, which majorises the
objective, so that every problem descends: large damping is a short reweighted step, none is Newton's. Both matrices
change with the parameters' scales as the gradient does, so that the .999 correlation of ln A and alpha costs nothing.

Legend: S problems (starts, or bootstrap samples), n rows, p parameters as searched (`Form.inner`).
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import numpy as np

from areca import runtime
from areca.laws.forms import Form, Predict, on_the_cpu_in_float64

CHUNK = 64  # problems a call of the program: a size at which its arrays stay in a core's cache
LEAST_ROWS = 16  # rows are padded to this or a power of two times it, so that tables of like size share a program
IN_FULL = {  # a fit's program runs for long, so it is compiled like this also where XLA_FLAGS spares the compiler
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
}
ITERATIONS = 400  # a few of a thousand samples creep along a valley that their rows leave flat
TOLERANCE = 1e-7
MAX_CHANGE = 0.5  # root mean square, of the predicted responses in an iteration
STALLED = 12  # iterations without progress that end a problem
ROUNDS = (16, 64)  # iterations after which the problems that go on are gathered into fewer chunks


@dataclass(frozen=True)
class Rows:
    """What a form is fitted to: its inputs [n] by name, and the response as residuals are taken of it."""

    inputs: Mapping[str, np.ndarray]
    target: np.ndarray  # [n] ln of the response, or the response

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True)
class Solutions:
    """What `solve` found for S problems."""

    theta: np.ndarray  # [S, p]
    objective: np.ndarray  # [S] weighted sum of Huber
    gradient: np.ndarray  # [S] largest projected derivative over the sum of its terms' sizes
    converged: np.ndarray  # [S] bool
    at_bound: np.ndarray  # [S, p] bool
    iterations: np.ndarray  # [S]

    def take(self, index: np.ndarray, other: "Solutions", keep: np.ndarray | slice = slice(None)) -> None:
        """Puts those of `other`, or those of them that are to be kept, in the places `index`."""
        for f in fields(self):
            getattr(self, f.name)[index[keep]] = getattr(other, f.name)[keep]


def huber(residual: np.ndarray, delta: Any) -> np.ndarray:
    """r^2 / 2 within delta, delta (|r| - delta / 2) outside."""
    size = np.abs(residual)
    return np.where(size <= delta, 0.5 * residual * residual, delta * (size - 0.5 * delta))


def solve(
    form: Form,
    rows: Rows,
    theta: np.ndarray,
    *,
    delta: float | np.ndarray,
    target: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    lower: np.ndarray | None = None,
    upper: np.ndarray | None = None,
    iterations: int = 0,
) -> Solutions:
    """Minimises sum_i weight_i huber(response_i - target_i) for each of S problems within a box.

    theta [S, p] starts; delta, a number or [S]; target (that of `rows` if not given) and weight (ones) [n] or [S, n];
    lower and upper (the form's) [p] or [S, p].
    """
    prepare()
    count, n = len(theta), len(rows)
    low, high = bounds(form)
    lower = np.broadcast_to(low if lower is None else lower, theta.shape)
    upper = np.broadcast_to(high if upper is None else upper, theta.shape)
    target = np.broadcast_to(rows.target if target is None else target, (count, n))
    weight = np.broadcast_to(1.0 if weight is None else weight, (count, n))
    delta = np.broadcast_to(np.asarray(delta, np.float64), (count,))
    inputs, constants, _ = _arguments(form, rows.inputs)
    padded = _padded_rows(n)
    program = _program(form.predict, form.names, tuple(p.log for p in form.parameters), form.compare, form.inputs)
    most = iterations or ITERATIONS
    state = _beginning(theta)

    def run(part: np.ndarray, limit: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        take = np.resize(part, CHUNK)  # a chunk that is not full repeats its problems
        batch = ({k: v[take] for k, v in state.items()}, lower[take], upper[take], delta[take])
        big = (_padded(target[take], padded), _padded(weight[take], padded, fill=0.0))
        with on_the_cpu_in_float64():
            new, on = program(*batch, *big, inputs, constants, np.int64(limit))
            return {k: np.asarray(v)[: len(part)] for k, v in new.items()}, np.asarray(on)[: len(part)]

    going, alone = np.arange(count), 1  # the first chunk of all compiles, once
    with ThreadPoolExecutor(runtime.available_cores()) as pool:
        for limit in (*(r for r in ROUNDS if r < most), most):
            chunks = [going[start : start + CHUNK] for start in range(0, len(going), CHUNK)]
            done = [run(part, limit) for part in chunks[:alone]] + list(pool.map(run, chunks[alone:], repeat(limit)))
            alone = 0
            for part, (new, _) in zip(chunks, done, strict=True):
                for k, v in new.items():
                    state[k][part] = v
            going = going[np.concatenate([on for _, on in done])]
            if not going.size:
                break
    found, taken = state["theta"], state["taken"]
    objective = np.where(np.isfinite(state["objective"]), state["objective"], np.inf)
    usable = np.isfinite(state["gradient"]) & np.isfinite(objective)
    gradient = np.where(usable, state["gradient"], np.inf)
    at_bound = (found <= lower + 1e-9) | (found >= upper - 1e-9)
    return Solutions(found, objective, gradient, gradient <= 100 * TOLERANCE, at_bound, taken)


def _beginning(theta: np.ndarray) -> dict[str, np.ndarray]:
    """What S problems start from. Nothing is known at theta [S, p], so the first iteration, which is not counted, stays
    there: its slope is 0."""
    count, p = theta.shape
    zeros = {"slope": (p,), "newton": (p, p), "majoriser": (p, p), "change": (p, p), "size": ()}
    return {
        "theta": np.array(theta, np.float64),
        "objective": np.full(count, np.inf),
        "gradient": np.full(count, np.inf),
        "damping": np.full(count, 5.0),  # 1 after the first
        "stalled": np.full(count, -1),
        "taken": np.full(count, -1),
        **{k: np.zeros((count, *shape)) for k, shape in zeros.items()},
    }


def bounds(form: Form) -> tuple[np.ndarray, np.ndarray]:
    """The form's box, [p] and [p], as searched."""
    return tuple(np.array([p.inner(getattr(p, end)) for p in form.parameters], np.float64) for end in ("low", "high"))  # type: ignore[return-value]


def evaluate(form: Form, values: Mapping[str, Any], inputs: Mapping[str, Any]) -> np.ndarray:
    """[S, n]: the response itself, for parameters by name [S] and inputs [n] (numbers where S or n is 1)."""
    prepare()
    given = np.stack(
        np.broadcast_arrays(*(np.atleast_1d(np.asarray(values[k], np.float64)) for k in form.names)), axis=1
    )
    padded, constants, n = _arguments(form, inputs)
    program = _evaluator(form.predict, form.names)
    parts = []
    with on_the_cpu_in_float64():
        for start in range(0, len(given), CHUNK):
            take = np.minimum(np.arange(start, start + CHUNK), len(given) - 1)
            parts.append(np.asarray(program(given[take], padded, constants))[: len(given) - start, :n])
    return np.concatenate(parts)


def response(form: Form, theta: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """[S, n]: the response as residuals are taken of it, for theta [S, p] as searched and inputs [n]."""
    found = evaluate(form, form.values(np.atleast_2d(theta)), inputs)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(found) if form.compare == "log" else found


def jacobian(form: Form, theta: np.ndarray, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """[n, p]: derivatives of the response, as residuals are taken of it, by the parameters as searched."""
    prepare()
    padded, constants, n = _arguments(form, inputs)
    program = _differentiator(form.predict, form.names, tuple(p.log for p in form.parameters), form.compare)
    with on_the_cpu_in_float64():
        return np.asarray(program(np.asarray(theta, np.float64), padded, constants))[:n]


def prepare() -> None:
    """Prepares the process where nobody did; a fit of a few rows must not take an accelerator's memory."""
    import os

    if not runtime.is_prepared():
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        runtime.prepare()


def _arguments(form: Form, inputs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.float64], int]:
    """(inputs [rows] padded, constants, how many rows there are) as a form's compiled programs take them."""
    columns = np.broadcast_arrays(*(np.atleast_1d(np.asarray(inputs[k], np.float64)) for k in form.inputs))
    n = len(columns[0])
    padded = {k: _padded(v, _padded_rows(n)) for k, v in zip(form.inputs, columns, strict=True)}
    return padded, {k: np.float64(v) for k, v in form.constants.items()}, n


def _padded_rows(n: int) -> int:
    return max(LEAST_ROWS, 2 ** int(np.ceil(np.log2(n))))


def _padded(values: np.ndarray, count: int, fill: float | None = None) -> np.ndarray:
    """The last axis at length `count`; what is added repeats the last value, or is `fill`."""
    more = count - values.shape[-1]
    if more == 0:
        return values
    tail = values[..., -1:] if fill is None else np.full((*values.shape[:-1], 1), fill)
    return np.concatenate([values, np.repeat(tail, more, axis=-1)], axis=-1)


def _response(predict: Predict, names: tuple[str, ...], logs: tuple[bool, ...], compare: str) -> Any:
    """respond(theta [p], inputs, constants) -> [n], for jax."""
    import jax.numpy as jnp

    def respond(theta: Any, inputs: Any, constants: Mapping[str, Any]) -> Any:
        values = {k: jnp.exp(theta[i]) if log else theta[i] for i, (k, log) in enumerate(zip(names, logs, strict=True))}
        found = predict(SimpleNamespace(**values, **constants), inputs)
        return jnp.log(found) if compare == "log" else found

    return respond


@lru_cache(maxsize=128)
def _evaluator(predict: Predict, names: tuple[str, ...]) -> Any:
    """evaluate(parameters [S, p], inputs, constants) -> [S, n], compiled."""
    import jax
    import jax.numpy as jnp

    def one(parameters: Any, inputs: Any, constants: Any) -> Any:
        values = dict(zip(names, parameters, strict=True))
        found = predict(SimpleNamespace(**values, **constants), SimpleNamespace(**inputs))
        return jnp.broadcast_to(found, next(iter(inputs.values())).shape)

    return jax.jit(jax.vmap(one, in_axes=(0, None, None)))


@lru_cache(maxsize=128)
def _differentiator(predict: Predict, names: tuple[str, ...], logs: tuple[bool, ...], compare: str) -> Any:
    """jacobian(theta [p], inputs, constants) -> [n, p], compiled."""
    import jax

    respond = _response(predict, names, logs, compare)
    return jax.jit(jax.jacfwd(lambda t, x, constants: respond(t, SimpleNamespace(**x), constants)))


@lru_cache(maxsize=128)
def _program(
    predict: Predict, names: tuple[str, ...], logs: tuple[bool, ...], compare: str, inputs: tuple[str, ...]
) -> Any:
    """The compiled solver of a form: everything of its problems that is a number is an argument."""
    import jax
    import jax.numpy as jnp
    from jax.scipy.linalg import cho_solve

    respond = _response(predict, names, logs, compare)

    def evaluate(theta: Any, target: Any, weight: Any, delta: Any, x: Any, constants: Any) -> dict[str, Any]:
        """Objective, slope, Newton's matrix, the majoriser, J'WJ, and the scale of the gradient."""
        value = respond(theta, x, constants)
        columns = jax.jacfwd(respond)(theta, x, constants)  # [n, p]
        residual = value - target
        size = jnp.abs(residual)
        inside = size <= delta
        influence = weight * jnp.where(inside, residual, delta * jnp.sign(residual))  # weight x psi
        ratio = weight * jnp.where(inside, 1.0, delta / jnp.maximum(size, delta))  # weight x psi / r
        terms = jnp.where(inside, 0.5 * residual * residual, delta * (size - 0.5 * delta))
        bent = jax.hessian(lambda t: jnp.sum(jax.lax.stop_gradient(influence) * respond(t, x, constants)))(theta)
        weighted = columns.T * weight[None, :]
        return {
            "objective": jnp.sum(weight * terms),
            "slope": columns.T @ influence,
            "size": jnp.max(jnp.abs(columns).T @ jnp.abs(influence)) + 1e-14,
            "newton": (weighted * inside[None, :]) @ columns + bent,
            "majoriser": (columns.T * ratio[None, :]) @ columns,
            "change": weighted @ columns / jnp.maximum(jnp.sum(weight), 1e-300),
        }

    def free_of(theta: Any, slope: Any, lower: Any, upper: Any) -> Any:
        """[p] bool: not at a bound that the way down leads out of."""
        out = ((theta <= lower + 1e-12) & (slope > 0)) | ((theta >= upper - 1e-12) & (slope < 0))
        return ~out & (upper > lower)

    def step_of(at: dict[str, Any], free: Any, damping: Any) -> Any:
        scaling = 1.0 / jnp.sqrt(jnp.maximum(jnp.diagonal(at["majoriser"]), 1e-30))  # unit diagonal
        ridge = 1e-12 + 1e-4 * damping

        def matrix(m: Any) -> Any:
            m = jnp.where(free[:, None] & free[None, :], m, 0.0) * scaling[:, None] * scaling[None, :]
            return m + jnp.diag(jnp.where(free, ridge, 1.0))

        factor = jnp.linalg.cholesky(matrix(at["newton"] + damping * at["majoriser"]))
        # Where Newton's matrix is not positive definite, the majoriser alone, which always descends.
        sure = jnp.linalg.cholesky(matrix((1.0 + damping) * at["majoriser"]) + 1e-10 * jnp.eye(len(free)))
        factor = jnp.where(jnp.all(jnp.isfinite(factor)), factor, sure)
        step = -cho_solve((factor, True), at["slope"] * free * scaling) * scaling
        change = jnp.sqrt(jnp.maximum(step @ at["change"] @ step, 0.0))
        return step * jnp.minimum(1.0, MAX_CHANGE / jnp.maximum(change, 1e-300))

    def one(
        state: dict[str, Any], lower: Any, upper: Any, delta: Any, target: Any, weight: Any, x: Any, constants: Any,
        most: Any,
    ) -> Any:  # fmt: skip
        x = SimpleNamespace(**x)

        def measured(theta: Any, at: dict[str, Any]) -> Any:
            return jnp.max(jnp.abs(at["slope"]) * free_of(theta, at["slope"], lower, upper) / at["size"])

        def unfinished(state: dict[str, Any]) -> Any:
            return (state["gradient"] > TOLERANCE) & (state["stalled"] < STALLED)

        def iterate(state: dict[str, Any]) -> dict[str, Any]:
            theta, damping = state["theta"], state["damping"]
            step = step_of(state, free_of(theta, state["slope"], lower, upper), damping)
            trial = jnp.clip(theta + step, lower, upper)
            there = evaluate(trial, target, weight, delta, x, constants)
            better = there["objective"] < state["objective"]  # False where it is not a number
            damping = jnp.where(better, jnp.maximum(damping * 0.2, 1e-10), damping * 5 + 1e-8)
            # At the floor of rounding an equal value is as good as it gets: a few such trials end the problem.
            same = jnp.abs(there["objective"] - state["objective"]) <= 1e-13 * jnp.abs(state["objective"])
            stuck = state["stalled"] + same.astype(jnp.int64) + (damping > 1e6).astype(jnp.int64)
            theta = jnp.where(better, trial, theta)
            at = {k: jnp.where(better, new, state[k]) for k, new in there.items()}
            return {
                **at,
                "theta": theta,
                "damping": damping,
                "stalled": jnp.where(better & ~same, jnp.int64(0), stuck),
                "gradient": measured(theta, at),
                "taken": state["taken"] + 1,
            }

        last = jax.lax.while_loop(lambda state: unfinished(state) & (state["taken"] < most), iterate, state)
        return last, unfinished(last)

    return jax.jit(jax.vmap(one, in_axes=(0,) * 6 + (None,) * 3), compiler_options=IN_FULL)


__all__ = ["CHUNK", "Rows", "Solutions", "bounds", "evaluate", "huber", "jacobian", "prepare", "response", "solve"]
