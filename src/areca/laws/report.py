"""`fit_laws`: every law the rows can carry, with intervals, as one object that is written to and read from law.json."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from areca import counted
from areca.config import check_seed
from areca.errors import DataError
from areca.files import read_json, write_json
from areca.lawjson import FORMAT, VALUES, check_law, fingerprint
from areca.laws.checks.curvature import bends
from areca.laws.checks.doubts import doubts
from areca.laws.checks.form_error import form_error, missing_doubt
from areca.laws.checks.sensitivity import sensitivity
from areca.laws.checks.validation import (
    How,
    Validation,
    leave_one_budget_out,
    leave_one_group_out,
    validate_largest_budget,
)
from areca.laws.fits.average import Average, Member, fit_average
from areca.laws.fits.bootstrap import Bootstrap, bootstrap
from areca.laws.fits.compute import PF_DAY, fit_compute
from areca.laws.fits.fitting import Objective
from areca.laws.fits.isoflop import LEVEL, IsoFlop, fit_isoflop
from areca.laws.fits.optimum import Optimum, optimum
from areca.laws.fits.parametric import ParametricFit, fit_parametric
from areca.laws.fits.resample import Method
from areca.laws.fits.uncertainty import three_ways
from areca.laws.reading.observations import Observations

ENDLESS = 1e300  # an N or D whose term of the law is gone
FAILED_CHECK = "fitted without "  # how the note of a failed validation begins


@dataclass(frozen=True)
class LawReport:
    """The parametric law with its samples, and what the budgets say by themselves (None, with a note, if nothing)."""

    parametric: ParametricFit
    samples: Bootstrap
    intervals: dict[str, list[float]]  # of the parameters, at `level`
    standard_errors: dict[str, float]
    isoflop: dict[str, Any] | None
    compute: dict[str, Any] | None
    compute_with_floor: dict[str, Any] | None
    validation: dict[str, Any] | None  # the largest budget, or runs, predicted from the others
    observations: Observations
    level: float = LEVEL
    seed: int = 0
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what makes L(N, D) no result to build on
    sources: list[str] = field(default_factory=list)  # what was read, relative to law.json's directory
    average: Average | None = None  # what predicts, if not `parametric` alone
    intervals_by: dict[str, Any] = field(default_factory=dict)  # bootstrap, profile, delta -> parameter -> interval
    leave_one_out: list[dict[str, Any]] = field(default_factory=list)  # each budget, or group, from the others
    curvature: list[dict[str, Any]] = field(default_factory=list)
    sensitivity: dict[str, Any] | None = None

    @property
    def predictor(self) -> Average:
        """What predictions come from: the average over couplings, or Chinchilla's form alone."""
        return self.average or Average((Member(1.0, self.parametric, self.samples),))

    @property
    def n_counts(self) -> counted.NCount:
        """Which parameters the law's N counts: as its rows."""
        return self.observations.n_counts

    @property
    def equation(self) -> str:
        """The law in words, as law.json and `areca fit` say it."""
        n = "with" if self.n_counts == "total" else "without"
        return f"L(N, D) = E + A / N^alpha + B / D^beta, nats per token; N {n} embeddings"

    def predict(self, n_params: Any, n_tokens: Any) -> np.ndarray:
        """Loss in nats per token."""
        return self.predictor.predict(n_params, n_tokens)

    @property
    def fingerprint(self) -> str:
        """Tells this law from others by its fitted values (`areca.lawjson`)."""

        def values(member: Member) -> dict[str, float]:
            fit = member.fit
            found = {name: getattr(fit, name) for name in ("coupling", *VALUES)}
            return {"weight": member.weight, **found}

        average = [values(form) for form in self.average.forms] if self.average else None
        return fingerprint({"parametric": values(Member(1.0, self.parametric, self.samples)), "average": average})

    def optimum(self, flops: float, level: float | None = None) -> Optimum:
        """The N and D of least loss under C = 6 N D, with intervals (at the report's level unless one is given)."""
        return optimum(self.predictor, flops, level or self.level)

    def predict_interval(
        self, n_params: float, n_tokens: float, level: float = 0.90, *, flops: float | None = None
    ) -> tuple[float, float]:
        """(low, high) in nats for one new run.

        With `flops`, what the run costs as the rows count C (`Observations.flops_of`), and beyond the rows, the
        interval also has the error of the law's form. Two things tell of it, each with a side: the mean error of the
        law when it predicted its own largest runs from the others, scaled by how much further (in ln C) this run
        lies; and half of its distance to the frontier's power law L(C), which has no floor. The larger on each side is
        added in quadrature. The error is not scaled where those runs lay less than `SHORT` times beyond the others, and
        the low end is at most widened to where a run without end of N and D would have it.
        """
        low, high = self.predictor.interval(n_params, n_tokens, level)
        if flops is None or flops <= self.observations.flops.max():
            return low, high
        beyond = float(np.log(flops / self.observations.flops.max()))
        centre = float(np.log(self.predict(n_params, n_tokens)))
        too_high, too_low = form_error(self.validation, self.compute, centre, flops, beyond)
        down, up = np.hypot(centre - np.log(low), too_high), np.hypot(np.log(high) - centre, too_low)
        floor = min(low, self.predictor.interval(ENDLESS, ENDLESS, level)[0])
        return max(floor, float(np.exp(centre - down))), float(np.exp(centre + up))

    def form_doubt(self, flops: float) -> str:
        """What is missing of the doubt about the law's form in the interval of a run of `flops` (as the rows count
        them), as a sentence; "" where nothing is."""
        return missing_doubt(self.validation, self.compute, flops > self.observations.flops.max())

    def to_dict(self) -> dict[str, Any]:
        """law.json. At most 400 samples are written; the intervals are of all that were drawn."""
        parametric = {
            **Member(1.0, self.parametric, self.samples).to_dict(),
            "intervals": self.intervals,
            "standard_errors": self.standard_errors,
            "level": self.level,
            "warnings": self.warnings,
        }
        return {
            "format": FORMAT,
            "fingerprint": self.fingerprint,
            "equation": self.equation,
            "objective": self.parametric.objective,
            "delta": self.parametric.delta,
            "seed": self.seed,
            "pf_day_flops": PF_DAY,
            "parametric": parametric,
            "average": [f.to_dict() for f in self.average.forms] if self.average else None,
            "isoflop": self.isoflop,
            "compute": self.compute,
            "compute_with_floor": self.compute_with_floor,
            "validation": self.validation,
            "intervals_by": self.intervals_by,
            "leave_one_out": self.leave_one_out,
            "curvature": self.curvature,
            "sensitivity": self.sensitivity,
            "columns": self.observations.columns,
            "observations": self.observations.to_dicts(),
            "notes": self.notes,
            "sources": self.sources,
        }

    @staticmethod
    def from_dict(values: dict[str, Any], where: str = "law.json") -> "LawReport":
        """The inverse of `to_dict`, but for the samples not written; DataError when a part is missing or no such."""
        if not isinstance(values, dict):
            raise DataError(f"{where} is not a law written by `areca fit`; fit it again.")
        check_law(values, where)
        if values.get("parametric") is None and values.get("forms"):
            names = ", ".join(str(f.get("form")) for f in values["forms"])
            raise DataError(
                f"{where} holds the law {names}, not L(N, D); fit the runs without --form to plan from them."
            )
        try:
            p = values["parametric"]
            form = Member.from_dict(p)
            average = values.get("average")
            return LawReport(
                parametric=form.fit,
                samples=form.samples,
                intervals=p["intervals"],
                standard_errors=p["standard_errors"],
                isoflop=values["isoflop"],
                compute=values["compute"],
                compute_with_floor=values["compute_with_floor"],
                validation=values["validation"],
                observations=Observations.from_dicts(values["observations"], columns=values["columns"]),
                level=p["level"],
                seed=values["seed"],
                notes=list(values["notes"]),
                warnings=list(p.get("warnings", [])),
                sources=list(values.get("sources", [])),
                average=Average(tuple(Member.from_dict(f) for f in average)) if average else None,
                intervals_by=values.get("intervals_by") or {},
                leave_one_out=values.get("leave_one_out") or [],
                curvature=values.get("curvature") or [],
                sensitivity=values.get("sensitivity"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{where} is not a law written by `areca fit` ({reason}); fit it again.") from None

    def save(self, path: Path | str) -> None:
        """Writes law.json, atomically."""
        write_json(path, self.to_dict())

    @staticmethod
    def load(path: Path | str) -> "LawReport":
        return LawReport.from_dict(read_json(path), str(path))


def fit_laws(
    observations: Observations,
    *,
    objective: Objective = "huber",
    delta: float = 1e-3,
    drop_highest: int = 0,
    samples: int = 1000,
    seed: int = 0,
    level: float = LEVEL,
    couplings: Sequence[float] = (1.0,),
    method: Method = "auto",
    deep: bool = True,
) -> LawReport:
    """Fits L(N, D) with its bootstrap, the isoFLOP valleys and L(C). FitError when L(N, D) can't be had.

    With more couplings than 1, Chinchilla's, predictions and their intervals are an average over them
    (`areca.laws.fits.average`); `parametric` is Chinchilla's form all the same. `method` is the bootstrap's; `deep`
    adds what tells how far to trust the law: profiles, each budget left out, tests for bends, the table of choices.
    """
    check_seed(seed)
    observations = observations.drop_highest(drop_highest)
    fit = fit_parametric(observations, objective=objective, delta=delta)
    drawn = bootstrap(observations, fit, samples=samples, seed=seed, method=method)
    notes, average = list(observations.notes), None
    if tuple(couplings) != (1.0,):
        average, left_out = fit_average(
            observations,
            objective=objective,
            delta=delta,
            couplings=couplings,
            samples=samples,
            seed=seed,
            known=(fit, drawn),
        )
        notes += left_out
    keys = [observations.column(name) for name in ("n_params", "n_tokens", "loss", *observations.others)]
    rows = np.nan_to_num(np.stack(keys, axis=1), nan=-1.0)
    same = len(rows) - len(np.unique(rows, axis=0))
    if same and not any("repeat others" in note for note in notes):  # who loads a table is told there
        notes.append(f"{same} of {len(observations)} rows repeat others, which makes every interval too narrow.")
    valleys = fit_isoflop(observations, samples=samples, seed=seed, level=level)
    compute = floor = None
    if valleys is None:
        notes.append("no budget is shared by at least 4 sizes, so there are no isoFLOP valleys and no L(C).")
    else:
        notes += valleys.notes
        compute, floor = fit_compute(valleys), fit_compute(valleys, with_floor=True)
    how = How(objective, delta, couplings, seed, level)
    validation = validate_largest_budget(observations, how)
    if validation is None:
        notes.append("no runs could be held out to predict from the others, so nothing says how far its form holds.")
    elif validation.failed:
        notes.append(
            f"{FAILED_CHECK}{validation.left_out or 'the largest budget'}, the law misses its runs by "
            f"{validation.mean_error:+.1%} on average ({validation.held} of {validation.rows} inside their {level:.0%} "
            "intervals): its form may not hold here."
        )
    checks = _deep(observations, fit, drawn, valleys, validation, how) if deep else {}
    profile = checks.get("intervals_by", {}).get("profile", {})
    return LawReport(
        parametric=fit,
        samples=drawn,
        warnings=[*observations.warnings, *doubts(fit, fit.form, fit.generic().values, drawn.theta, profile, level)],
        intervals=drawn.parameter_intervals(level),
        standard_errors=drawn.standard_errors(),
        isoflop=valleys.to_dict() if valleys else None,
        compute=compute.to_dict() if compute else None,
        compute_with_floor=floor.to_dict() if floor else None,
        validation=validation.to_dict() if validation else None,
        observations=observations,
        level=level,
        seed=seed,
        notes=notes,
        average=average,
        **checks,
    )


def _deep(
    observations: Observations,
    fit: ParametricFit,
    drawn: Bootstrap,
    valleys: IsoFlop | None,
    validation: Validation | None,
    how: How,
) -> dict[str, Any]:
    """What tells how far to trust the law."""
    exact = drawn.method == "exact"  # rows that are the law itself have no uncertainty to follow
    left_out = leave_one_budget_out(observations, how, largest=validation)
    if observations.group and len(set(observations.group)) > 1:
        left_out += leave_one_group_out(observations, observations.group, how)
    return {
        "intervals_by": {}
        if exact
        else three_ways(fit.generic(), observations, drawn.parameter_intervals(how.level), how.level),
        "leave_one_out": [v.to_dict() for v in left_out],
        "curvature": [] if exact else [b.to_dict() for b in bends(observations, fit, valleys, how.level)],
        "sensitivity": sensitivity(observations, fit),
    }
