"""Where fits start: a grid over the exponents, with what follows from them computed and not guessed.

Parameters that enter linearly are found by least squares for each point of the grid (variable projection), scales from
the middle of the rows. 54% of the plain grid of the Chinchilla paper ends far from the optimum (Besiroglu et al. 2024).
"""

import itertools

import numpy as np

from areca.laws.fits.engine import Rows, bounds, evaluate, response
from areca.laws.forms import Form

MOST = 256  # starts; a larger grid is thinned evenly
BEGINNINGS = 12  # of a simpler law's starts, those that fit best; all of them where no other parameter has its grid


def starts(form: Form, rows: Rows) -> np.ndarray:
    """[S, p] parameters as searched."""
    common: list[dict[str, float]] = [{}]
    if form.begin:
        base = starts(form.begin, rows)
        misfit = ((response(form.begin, base, rows.inputs) - rows.target) ** 2).sum(axis=1)
        if set(form.names) - set(form.begin.names):
            base = base[np.argsort(misfit)[:BEGINNINGS]]
        common = [{k: float(v) for k, v in form.begin.values(theta).items()} for theta in base]
    given = set(common[0])
    grid = [p.starts if not (p.of or p.name in form.linear or p.name in given) else (1.0,) for p in form.parameters]
    points = [{**dict(zip(form.names, point, strict=True)), **c} for c in common for point in itertools.product(*grid)]
    if len(points) > MOST:
        points = [points[i] for i in np.linspace(0, len(points) - 1, MOST).round().astype(int)]
    middle = float(np.mean(rows.target)) if form.compare == "log" else 0.0
    for values in points:
        for p in form.parameters:
            if p.of and p.name not in given:
                power = {**form.constants, **values}.get(p.exponent)
                values[p.name] = np.exp(np.mean(np.log(rows.inputs[p.of])) + (middle / power if power else 0.0))
    found = np.array([form.inner(values) for values in points])
    if form.linear and not form.begin:
        found = project(form, rows, found)
    low, high = bounds(form)
    return np.clip(found, low, high)


def project(form: Form, rows: Rows, theta: np.ndarray) -> np.ndarray:
    """theta [S, p] with its linear parameters replaced by those of least squares on the response relative to itself.

    What comes out negative is set to a thousandth of the response's size: there the optimiser decides.
    """
    observed = np.exp(rows.target) if form.compare == "log" else rows.target
    values = form.values(theta)
    basis = []
    for name in form.linear:
        only = {n: np.full(len(theta), float(n == name)) if n in form.linear else values[n] for n in form.names}
        basis.append(evaluate(form, only, rows.inputs))
    relative = np.abs(observed) if form.compare == "log" else np.ones_like(observed)
    columns = np.nan_to_num(np.stack(basis, axis=2)) / relative[None, :, None]  # [S, n, linear]
    wanted = observed / relative
    found = theta.copy()
    for s in range(len(theta)):
        amplitude = np.linalg.lstsq(columns[s], wanted, rcond=None)[0]
        for name, value in zip(form.linear, amplitude, strict=True):
            p = form.parameters[form.names.index(name)]
            found[s, form.names.index(name)] = p.inner(max(value, 1e-3 * observed.min()) if p.log else value)
    return found
