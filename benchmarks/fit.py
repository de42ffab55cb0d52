"""4,000 pairs bootstraps of the Chinchilla fit, beside scipy's optimisers one by one.

    make bench-fit ARGS="--data svg_extracted_data.csv"   # the replication's rows (Besiroglu et al. 2024)
    make bench-fit                                        # as many simulated rows

Ours: one compiled program for all samples, on all cores; compilation is timed apart, with an empty cache. scipy: BFGS
with numerical derivatives of the same objective, which is how the replication did it, and least_squares (trust region,
loss "huber"), each from the fit to all rows, on a share of the same samples and scaled up. Seconds by the clock and of
processor time: the latter hardly minds what else the machine does.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DELTA = 1e-3
TRUTH = (482.01, 2085.43, 1.8172, 0.3478, 0.3658)  # A, B, E, alpha, beta of the replication


def rows_of(path: Path | None) -> Any:
    """The 240 rows that the replication fits, or 240 simulated ones of the same law with 1% noise."""
    from areca.laws import Observations, load

    if path is not None:
        return load([path], n_params="Model Size", flops="Training FLOP", loss="loss").drop_highest(5)
    generator = np.random.default_rng(0)
    a, b, e, alpha, beta = TRUTH
    c = np.exp(generator.uniform(np.log(6e18), np.log(3e21), 240))
    n = np.sqrt(c / 120) * np.exp(generator.normal(0, 0.8, 240))
    d = c / 6 / n
    return Observations(n, d, c, (e + a / n**alpha + b / d**beta) * np.exp(0.01 * generator.standard_normal(240)))


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, seconds by the clock, seconds of processor time)."""
    clock, processor = time.perf_counter(), time.process_time()
    found = function()
    return found, time.perf_counter() - clock, time.process_time() - processor


def one_by_one(rows: Any, theta: np.ndarray, drawn: np.ndarray, way: str) -> list[float]:
    """The objective that scipy reaches on each drawn table [samples, n]."""
    from scipy.optimize import least_squares, minimize

    reached = []
    for index in drawn:
        log_n, log_d, target = np.log(rows.n_params[index]), np.log(rows.n_tokens[index]), np.log(rows.loss[index])

        def residual(p: np.ndarray, log_n=log_n, log_d=log_d, target=target) -> np.ndarray:
            return np.logaddexp(np.logaddexp(p[0] - p[3] * log_n, p[1] - p[4] * log_d), p[2]) - target

        def objective(p: np.ndarray, residual=residual) -> float:
            size = np.abs(residual(p))
            return float(np.where(size <= DELTA, 0.5 * size**2, DELTA * (size - 0.5 * DELTA)).sum())

        if way == "BFGS":
            found = minimize(objective, theta, method="BFGS").x
        else:
            found = least_squares(residual, theta, loss="huber", f_scale=DELTA, x_scale="jac", max_nfev=1000).x
        reached.append(objective(found))
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the replication's svg_extracted_data.csv; simulated rows otherwise")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--share", type=int, default=40, help="samples that scipy is timed on")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ARECA_CACHE"] = cache
        measure(options)


def measure(options: argparse.Namespace) -> None:
    from areca import runtime
    from areca.laws import bootstrap, fit_parametric
    from areca.laws.fits.engine import response
    from areca.laws.fits.fitting import rows_of as of_form
    from areca.laws.fits.fitting import total
    from areca.laws.fits.resample import refit

    rows = rows_of(options.data)
    print(f"{len(rows)} rows ({options.data or 'simulated'}), {options.samples:,} pairs bootstraps, "
          f"{runtime.available_cores()} cores, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    fit, cold, _ = timed(lambda: fit_parametric(rows, delta=DELTA))
    _, warm, _ = timed(lambda: fit_parametric(rows, delta=DELTA))
    print(f"compilation, apart: {cold - warm:.2f} s; then the fit from {fit.n_starts} starts takes {warm:.2f} s")

    def ours() -> Any:
        return bootstrap(rows, fit, samples=options.samples, method="pairs")

    ours()
    rounds = [timed(ours)[1:] for _ in range(options.rounds)]
    clock, processor = (float(np.median(v)) for v in zip(*rounds, strict=True))
    print(f"ours: {clock:.2f} s (median of {options.rounds}; {min(r[0] for r in rounds):.2f} to "
          f"{max(r[0] for r in rounds):.2f}), {processor:.2f} s of processor time")  # fmt: skip
    generator = np.random.default_rng(1)
    drawn = generator.integers(0, len(rows), (options.share, len(rows)))
    weight = np.stack([np.bincount(index, minlength=len(rows)) for index in drawn]).astype(float)
    generic = fit.generic()
    data = of_form(generic.form, rows)
    theta, _ = refit(generic, data, data.target, weight, options.share)
    residual = response(generic.form, theta, data.inputs) - data.target
    best = np.array([total(r, "huber", DELTA, w) for r, w in zip(residual, weight, strict=True)])
    for way in ("BFGS", "least_squares"):
        reached, scipy_clock, scipy_processor = timed(lambda way=way: one_by_one(rows, fit.theta, drawn, way))
        scale = options.samples / options.share
        excess = np.array(reached) / best - 1
        print(
            f"scipy {way}: {scipy_clock * scale:.0f} s, {scipy_processor * scale:.0f} s of processor time "
            f"({options.share} samples x {scale:.0f}); ours is {scipy_clock * scale / clock:.0f} times as fast "
            f"by the clock, {scipy_processor * scale / processor:.0f} times a core; scipy's objective is above ours by "
            f"{np.median(excess):.1e} in the middle, {excess.max():.1e} at most, {excess.min():.1e} at least"
        )


if __name__ == "__main__":
    main()
