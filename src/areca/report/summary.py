"""report.json: what the page says, for machines. Losses are nats per token; an absent number is null."""

from collections.abc import Sequence
from typing import Any

from areca import __version__
from areca.report.checks import HeldOut
from areca.report.gather import Gathered
from areca.report.law import Law
from areca.report.rundirs import Run
from areca.report.values import at_least, finite, json_ready, number, objects, pair, positive, sentences
from areca.report.view import View


def summarise(view: View) -> dict[str, Any]:
    """The content of report.json; a quickstart's has the prediction and what came of it at its top level."""
    found = view.found
    summary: dict[str, Any] = {"kind": found.kind, "areca": __version__}
    if found.kind == "quickstart":
        summary |= verdict(found)
    elif found.plan is not None:
        summary["plan"] = _plan(found.plan)
    for name, origin in (("plan_law", view.origin), ("design_law", view.design_origin)):
        if origin is not None:
            summary[name] = origin.to_dict()
    net = total(found.all_runs, "carbon_net_kg")
    summary |= {
        "holds": [name for name in ("law", "plan", "design") if getattr(found, name) is not None],
        "runs": [row(run) for run in found.all_runs],
        "law": _law(view.law),
        "energy_kwh": total(found.all_runs, "energy_kwh"),
        "carbon_kg": total(found.all_runs, "carbon_kg"),
        **({"carbon_net_kg": net} if net and not net["runs_without"] else {}),
        "seconds": _seconds(found),
        "seconds_at_least": any(at_least(stage) for stage in _stages(found)),
        "missing": found.missing,
        "notes": view.notes,
    }
    if found.kind == "quickstart":
        record = found.quickstart or {}
        summary |= {
            "minutes": finite(record.get("minutes")),
            "seed": json_ready(record.get("seed")),
            "stages": json_ready(record.get("stages")),
            "corpora": json_ready((found.store or {}).get("corpora")),
            "samples": json_ready(found.samples),
        }
    return summary


def verdict(found: Gathered) -> dict[str, Any]:
    """The prediction, its interval, what training gave, and how far off it was.

    `relative_error` is predicted / achieved - 1; `error_share_of_drop` the error as a share of the drop from the best
    rung's loss (the naive baseline) to the achieved one; `half_width_relative` half the interval over the prediction.
    """
    predicted = positive(found.plan, "predicted_loss")
    bounds = pair((found.plan or {}).get("interval_90"))
    baseline = positive(found.plan, "naive_baseline_loss")
    achieved = positive(found.verify.result, "loss") if found.verify else None
    half_width = positive(found.plan, "half_width_relative")
    if half_width is None and bounds and predicted:
        half_width = (bounds[1] - bounds[0]) / 2 / predicted
    error = predicted / achieved - 1 if predicted and achieved else None
    naive_error = baseline / achieved - 1 if baseline and achieved else None
    share = None
    if predicted and achieved and baseline and baseline > achieved:
        share = abs(predicted - achieved) / (baseline - achieved)
    return {
        "predicted_loss": predicted,
        "predicted_interval_90": list(bounds) if bounds else None,
        "achieved_loss": achieved,
        "relative_error": error,
        "covered": bounds[0] <= achieved <= bounds[1] if bounds and achieved else None,
        "half_width_relative": half_width,
        "naive_baseline_loss": baseline,
        "naive_relative_error": naive_error,
        "error_share_of_drop": share,
        "n_params": positive(found.plan, "n_params"),
        "n_tokens": positive(found.plan, "n_tokens"),
        "flops_exact": positive(found.plan, "flops_exact"),
        "flops_6nd": positive(found.plan, "flops_6nd"),
        "warnings": json_ready((found.plan or {}).get("warnings", [])),
    }


def row(run: Run) -> dict[str, Any]:
    """One run in the table of runs."""
    result = run.result or {}
    names = ("n_params", "n_params_total", "n_tokens", "flops_exact", "flops_6nd", "loss", "train_loss_last")
    names += ("tokens_per_second", "mfu", "hfu", "seconds", "compile_seconds", "steps", "rewinds", "skipped_tokens")
    return {
        "name": run.name,
        "finished": run.result is not None,
        "budget_flops": run.budget_flops,
        **{name: run.number(name) for name in names},
        "loss_by_corpus": json_ready(result.get("loss_by_corpus")),
        "saves": json_ready(result.get("saves")),
        **({"mixtures": json_ready(result["mixtures"])} if "mixtures" in result else {}),
        "parameters_sha256": json_ready(result.get("parameters_sha256")),
    }


def total(runs: Sequence[Run], key: str) -> dict[str, Any] | None:
    """The sum over runs of a figure that carries its kind, such as `{"value": 0.01, "kind": "estimated (TDP)"}`.

    The kind is kept where all runs agree, and listed where they do not; None if no run has the figure.
    """
    entries = [run.result.get(key) for run in runs if run.result]
    known = [e for e in entries if isinstance(e, dict) and number(e, "value") is not None]
    if not known:
        return None
    kinds = sorted({str(e.get("kind", "kind not recorded")) for e in known})
    value = sum(number(e, "value") or 0.0 for e in known)
    return {"value": value, "kind": ", ".join(kinds), "runs": len(known), "runs_without": len(runs) - len(known)}


def _stages(found: Gathered) -> list[dict[str, Any]]:
    """The stages of a quickstart whose time is known."""
    return [s for s in objects((found.quickstart or {}).get("stages")) if number(s, "seconds") is not None]


def _seconds(found: Gathered) -> float | None:
    stages = _stages(found)
    if stages:
        return sum(number(stage, "seconds") or 0.0 for stage in stages)
    known = [s for s in (run.number("seconds") for run in found.all_runs) if s is not None]
    return sum(known) if known else None


def _plan(plan: dict[str, Any]) -> dict[str, Any]:
    bounds, cost = pair(plan.get("interval_90")), plan.get("cost")
    names = ("n_params", "n_tokens", "flops_exact", "flops_6nd", "predicted_loss", "half_width_relative")
    return {
        **{name: positive(plan, name) for name in names},
        "interval": list(bounds) if bounds else None,
        "level": positive(plan, "level"),
        "cost": json_ready(cost) if isinstance(cost, dict) else None,
        "warnings": sentences(plan.get("warnings")),
    }


def _law(law: Law | None) -> dict[str, Any] | None:
    if law is None:
        return None
    named = [*law.parameters.values(), *law.exponents, *law.compute.parameters]
    found: dict[str, Any] = {
        "fingerprint": law.fingerprint or None,
        "parameters": {p.name: {"value": p.value, "interval_90": p.interval} for p in named},
        "status": json_ready(law.status),
    }
    checks = law.checks
    if checks.largest:
        found["largest_budget_held_out"] = _held(checks.largest)
    if checks.left_out:
        found["budgets_left_out"] = [_held(h) for h in checks.left_out]
    if law.others:
        found["forms"] = [json_ready({k: form.get(k) for k in ("form", "values", "status")}) for form in law.others]
    return found


def _held(held: HeldOut) -> dict[str, Any]:
    names = ("budget_flops", "rows", "mean_error", "worst_error", "held", "level")
    return {name: getattr(held, name) for name in names}
