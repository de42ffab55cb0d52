"""Many small robust regressions at once: damped Newton over a batch of problems, vectorised in numpy.

The model is Chinchilla's in log-sum-exp form (Hoffmann et al. 2022, appendix D.3), with a coupling q of its two terms:

    ln L(N, D) = log(exp(u) + exp(e)),  u = log(exp(q (a - alpha x)) + exp(q (b - beta y))) / q,
    x = ln N - mean, y = ln D - mean

q = 1 is the paper's sum of terms; the larger q, the more the larger of the two decides alone.
Centring x and y takes the correlation of ln A and alpha from .999 to about 0, so that one damping suits all
parameters. The objective is a weighted sum of Huber's function of the residual of ln L; least squares is a delta
larger than any residual, least absolute deviations the limit of a small one.

Legend: S problems (starts, or bootstrap samples), n observations, 5 parameters in the order a, b, e, alpha, beta.
"""

from dataclasses import dataclass

import numpy as np

N_PARAMETERS = 5
MAX_STEP = 1.5  # in the centred parameters, an iteration


@dataclass(frozen=True)
class Solutions:
    """What `minimise` found for S problems."""

    theta: np.ndarray  # [S, 5] centred parameters
    objective: np.ndarray  # [S] weighted sum of Huber
    gradient: np.ndarray  # [S] largest projected derivative over the sum of its terms' sizes
    converged: np.ndarray  # [S] bool: `gradient` below the tolerance
    at_bound: np.ndarray  # [S, 5] bool


def predict_log_loss(theta: np.ndarray, x: np.ndarray, y: np.ndarray, coupling: float = 1.0) -> np.ndarray:
    """ln L for centred ln N `x` [n] and ln D `y` [n]; theta [S, 5] -> [S, n]."""
    if coupling == 1.0:
        terms = _terms(theta, x, y)
        top = terms.max(axis=0)
        return top + np.log(np.exp(terms - top).sum(axis=0))
    of_n, of_d, floor = _terms(theta, x, y)
    return np.logaddexp(np.logaddexp(coupling * of_n, coupling * of_d) / coupling, floor)


def huber(residual: np.ndarray, delta: float) -> np.ndarray:
    """r^2 / 2 within delta, delta (|r| - delta / 2) outside."""
    size = np.abs(residual)
    return np.where(size <= delta, 0.5 * residual * residual, delta * (size - 0.5 * delta))


def minimise(
    theta: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    *,
    delta: float,
    lower: np.ndarray,
    upper: np.ndarray,
    coupling: float = 1.0,
    iterations: int = 200,
    tolerance: float = 1e-7,
) -> Solutions:
    """Minimises sum_i weight_i huber(ln L(theta) - target_i) for each of S problems within a box.

    theta [S, 5] starts; x, y [n]; target and weight [S, n] or [1, n]; lower and upper [5]. Newton's matrix is damped
    by the reweighted-least-squares matrix, which majorises the objective, so that every problem descends: large
    damping is a short reweighted step, none is Newton's. Problems that have converged leave the batch.
    """
    count, n = theta.shape[0], x.shape[0]
    theta = np.clip(theta, lower, upper)
    target = np.broadcast_to(target, (count, n))
    weight = np.broadcast_to(weight, (count, n))
    objective = (weight * huber(predict_log_loss(theta, x, y, coupling) - target, delta)).sum(axis=1)
    gradient = np.full(count, np.inf)
    damping = np.ones(count)
    stalled = np.zeros(count, dtype=int)
    active = np.arange(count)
    state = _derivatives(theta, x, y, target, weight, delta, coupling)
    for _ in range(iterations):
        slope, newton, majoriser, size = state
        free = ~_pushed_out(theta[active], slope, lower, upper)
        gradient[active] = (np.abs(slope) * free / size).max(axis=1)
        keep = (gradient[active] > tolerance) & (stalled[active] < 12)
        if not keep.all():
            active = active[keep]
            if active.size == 0:
                break
            slope, newton, majoriser, free = slope[keep], newton[keep], majoriser[keep], free[keep]
            state = (slope, newton, majoriser, size[keep])
        step = _step(slope, newton, majoriser, free, damping[active])
        trial = np.clip(theta[active] + step, lower, upper)
        value = (weight[active] * huber(predict_log_loss(trial, x, y, coupling) - target[active], delta)).sum(axis=1)
        better = value < objective[active]
        damping[active] = np.where(better, np.maximum(damping[active] * 0.2, 1e-10), damping[active] * 5 + 1e-8)
        # At the floor of rounding an equal value is as good as it gets: a few such trials end the problem.
        no_change = np.abs(value - objective[active]) <= 1e-15 * np.abs(objective[active])
        stalled[active] = np.where(better & ~no_change, 0, stalled[active] + no_change + (damping[active] > 1e6))
        moved = active[better]
        theta[moved] = trial[better]
        objective[moved] = value[better]
        if better.all():
            state = _derivatives(theta[active], x, y, target[active], weight[active], delta, coupling)
        elif better.any():
            fresh = _derivatives(theta[moved], x, y, target[moved], weight[moved], delta, coupling)
            for old, new in zip(state, fresh, strict=True):
                old[better] = new
    at_bound = (theta <= lower + 1e-9) | (theta >= upper - 1e-9)
    return Solutions(theta, objective, gradient, gradient <= 100 * tolerance, at_bound)


def _terms(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[3, S, n]: the logarithms of the three terms."""
    a, b, e, alpha, beta = (theta[:, k : k + 1] for k in range(N_PARAMETERS))
    return np.stack([a - alpha * x, b - beta * y, np.broadcast_to(e, (theta.shape[0], x.shape[0]))])


def _shares(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray, coupling: float
) -> tuple[np.ndarray, tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """ln L, its derivatives by the logarithms of the three terms, and what its Hessian by the first two has over -J J'.

    All [S, n]. With p = exp(u) / L and w the share of the first term in exp(q u): p w and p (1 - w) are the first two
    derivatives, and the matrix is p (w^2 + q w (1 - w)) on the diagonal and p w (1 - w) (1 - q) off it.
    """
    if coupling == 1.0:
        terms = _terms(theta, x, y)
        top = terms.max(axis=0)
        share = np.exp(terms - top)
        total = share.sum(axis=0)
        p_a, p_b, p_e = share / total
        return top + np.log(total), (p_a, p_b, p_e), (p_a, p_b, np.zeros_like(p_a))
    of_n, of_d, floor = _terms(theta, x, y)
    both = np.logaddexp(coupling * of_n, coupling * of_d)
    w_a, w_b = np.exp(coupling * of_n - both), np.exp(coupling * of_d - both)
    value = np.logaddexp(both / coupling, floor)
    p, p_e = np.exp(both / coupling - value), np.exp(floor - value)
    cross = w_a * w_b
    diagonal = p * (w_a**2 + coupling * cross), p * (w_b**2 + coupling * cross)
    return value, (p * w_a, p * w_b, p_e), (*diagonal, p * cross * (1.0 - coupling))


def _derivatives(
    theta: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray,
    delta: float,
    coupling: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradient [S, 5], Hessian [S, 5, 5], reweighted matrix [S, 5, 5] and the gradient's scale [S, 1]."""
    value, (p_a, p_b, p_e), (m_a, m_b, m_ab) = _shares(theta, x, y, coupling)
    residual = value - target
    size = np.abs(residual)
    inside = size <= delta
    influence = weight * np.where(inside, residual, delta * np.sign(residual))  # weight x psi
    ratio = weight * np.where(inside, 1.0, delta / np.maximum(size, delta))  # weight x psi / r
    jacobian = np.stack([p_a, p_b, p_e, -x * p_a, -y * p_b], axis=1)  # [S, 5, n]
    slope = (jacobian * influence[:, None, :]).sum(axis=2)
    scale = (np.abs(jacobian) * np.abs(influence)[:, None, :]).sum(axis=2).max(axis=1, keepdims=True) + 1e-14
    transposed = jacobian.transpose(0, 2, 1)
    majoriser = (jacobian * ratio[:, None, :]) @ transposed
    curvature = weight * inside - influence
    newton = (jacobian * curvature[:, None, :]) @ transposed
    # The log-sum-exp's own curvature: sum_k m_k v_k v_k' (the other half, -J J', is in `curvature`).
    for i, j, m, z in ((0, 3, m_a, x), (1, 4, m_b, y)):
        w = influence * m
        cross = -(w * z).sum(axis=1)
        newton[:, i, i] += w.sum(axis=1)
        newton[:, i, j] += cross
        newton[:, j, i] += cross
        newton[:, j, j] += (w * z * z).sum(axis=1)
    newton[:, 2, 2] += (influence * p_e).sum(axis=1)
    if coupling != 1.0:
        w = influence * m_ab
        for i, j, z in ((0, 1, 1.0), (0, 4, -y), (1, 3, -x), (3, 4, x * y)):
            cross = (w * z).sum(axis=1)
            newton[:, i, j] += cross
            newton[:, j, i] += cross
    return slope, newton, majoriser, scale


def _pushed_out(theta: np.ndarray, slope: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """[S, 5] bool: parameters at a bound whose descent direction leaves the box."""
    return ((theta <= lower + 1e-12) & (slope > 0)) | ((theta >= upper - 1e-12) & (slope < 0))


def _step(
    slope: np.ndarray, newton: np.ndarray, majoriser: np.ndarray, free: np.ndarray, damping: np.ndarray
) -> np.ndarray:
    """The damped Newton step [S, 5], zero in the parameters that are not free, a descent direction in the others."""
    both = free[:, :, None] & free[:, None, :]
    diagonal = np.maximum(np.einsum("sii->si", majoriser), 1e-30)
    scaling = 1.0 / np.sqrt(diagonal)  # unit diagonal: one ridge suits all parameters
    matrix = newton + damping[:, None, None] * majoriser
    matrix = np.where(both, matrix, 0.0) * scaling[:, :, None] * scaling[:, None, :]
    index = np.arange(N_PARAMETERS)
    matrix[:, index, index] += np.where(free, 1e-12 + 1e-4 * damping[:, None], 1.0)
    right = slope * free * scaling
    try:
        step = -np.linalg.solve(matrix, right[:, :, None])[:, :, 0]
        uphill = ~((step * right).sum(axis=1) < 0)
    except np.linalg.LinAlgError:
        step, uphill = np.zeros_like(right), np.ones(len(right), dtype=bool)
    if uphill.any():  # an indefinite matrix: the same with its eigenvalues made positive
        values, vectors = np.linalg.eigh(matrix[uphill])
        rotated = np.einsum("sij,si->sj", vectors, right[uphill]) / np.maximum(np.abs(values), 1e-9)
        step[uphill] = -np.einsum("sij,sj->si", vectors, rotated)
    step = step * scaling
    longest = np.abs(step).max(axis=1, keepdims=True)
    return step * np.minimum(1.0, MAX_STEP / np.maximum(longest, 1e-300))
