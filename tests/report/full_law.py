"""law.json as `areca fit` writes it for a table of made-up runs, with the checks that a full fit adds, by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_quickstart import best_size, loss

BUDGETS = (1e13, 4e13, 1.6e14, 6.4e14)
FACTORS = (0.25, 0.5, 0.8, 1.25, 2.0, 4.0)
NOISE = 0.002
TARGET = 1e16  # FLOPs that choices are compared at, 6 N D
EXTRA = 1.013  # exact FLOPs over 6 N D
BASELINE = 1.6e14  # FLOPs of the best run
OUTLIER = "runs.csv line 9"  # +3%


def write_table(path: Path, seed: int = 0) -> Path:
    """runs.csv: 24 runs of 4 budgets, drawn from the law of `synthetic_quickstart` with C = 6 N D."""
    rng = np.random.default_rng(seed)
    lines = ["n_params,n_tokens,loss"]
    for c in BUDGETS:
        for factor in FACTORS:
            n = round(best_size(c * 8.5 / 6) * factor)
            d = round(c / 6 / n)
            value = float(loss(n, d) * np.exp(NOISE * rng.normal()))
            lines.append(f"{n},{d},{value * (1.03 if len(lines) == 8 else 1.0)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def predicted(law: dict[str, Any], n: float, d: float) -> float:
    """E + A / N^alpha + B / D^beta of law.json."""
    p = law["parametric"]
    return p["E"] + p["A"] / n ** p["alpha"] + p["B"] / d ** p["beta"]


def with_checks(law: dict[str, Any]) -> dict[str, Any]:
    """The law with intervals by method, budgets left out, tests for curvature, choices and laws of other forms."""
    law = json.loads(json.dumps(law))
    p = law["parametric"]
    names = ("A", "B", "E", "alpha", "beta")
    law["intervals_by"] = {
        "bootstrap": {k: p["intervals"][k] for k in names},
        "profile": {k: [0.9 * p[k], 1.15 * p[k]] for k in names} | {"B": [0.5 * p["B"], None]},
        "delta": {k: [p[k] - 1.6 * p["standard_errors"][k], p[k] + 1.6 * p["standard_errors"][k]] for k in names},
    }
    held = [_held(law, c) for c in BUDGETS]
    law["leave_one_out"] = held
    law["validation"] = held[-1] | {"stretch": 4.0}
    law["curvature"] = [
        {"of": "L(C) on the frontier", "coefficient": 0.0021, "interval": [-0.0011, 0.0054], "p_value": 0.21,
         "says": "no bend is seen: a power law serves within these budgets."},
        {"of": "N_opt(C)", "coefficient": -0.013, "interval": [-0.022, -0.004], "p_value": 0.006,
         "says": "the best size grows more slowly at larger budgets."},
        {"of": "residuals along ln N", "coefficient": None, "interval": None, "p_value": None, "says": "not tested."},
    ]  # fmt: skip
    law["sensitivity"] = {"flops": TARGET, "rows": _choices(law)}
    law["forms"] = other_forms()
    return law


def _held(law: dict[str, Any], budget: float) -> dict[str, Any]:
    points = []
    for row in law["observations"]:
        if abs(row["flops"] / budget - 1) < 0.05:
            at = predicted(law, row["n_params"], row["n_tokens"]) * 1.004
            points.append(row | {"predicted": at, "low": 0.99 * at, "high": 1.01 * at})
    errors = [q["predicted"] / q["loss"] - 1 for q in points]
    inside = sum(q["low"] <= q["loss"] <= q["high"] for q in points)
    found = {"budget_flops": budget, "rows": len(points), "mean_error": float(np.mean(errors)), "level": 0.9}
    return found | {"worst_error": max(errors, key=abs), "held": inside, "points": points}


def _choices(law: dict[str, Any]) -> list[dict[str, Any]]:
    p = law["parametric"]
    rows = []
    names = ("as fitted", "drop 5 highest", "objective lad", "objective l2", "N with embeddings", "C = 6 N D")
    for i, name in enumerate(names):
        a = p["beta"] / (p["alpha"] + p["beta"]) + 0.012 * i * (-1) ** i
        row = {"choice": name, "n_points": 24 - 5 * (i == 1), "failed": None, "n_exponent": a}
        row |= {k: p[k] * (1 + 0.01 * i) for k in ("A", "B", "E", "alpha", "beta")}
        rows.append(row | {"n_opt": 3e6 * (1 + 0.1 * i), "predicted_loss": 2.31 + 0.006 * i})
    nothing = dict.fromkeys(("n_points", "A", "B", "E", "alpha", "beta", "n_exponent", "n_opt", "predicted_loss"))
    return [*rows, {"choice": "drop 20 highest", "failed": "4 rows can't carry five parameters."} | nothing]


def other_forms() -> list[dict[str, Any]]:
    """A score against compute (one input, linear) and a batch size over N and D (two inputs, logarithmic)."""
    c = np.geomspace(1e18, 1e22, 9)
    fitted = 0.25 + 0.6 / (1 + (3e20 / c) ** 0.9)
    seen = fitted + 0.01 * np.array([1, -1, 0.5, 0, -0.5, 1, -1, 0.3, -0.2])
    at = np.geomspace(5e17, 2e22, 40)
    line = 0.25 + 0.6 / (1 + (3e20 / at) ** 0.9)
    common = {"source": "made up", "objective": "l2", "objective_value": 1e-3, "status": "converged"}
    common |= {"share_of_starts": 0.8, "n_starts": 64, "condition": 320.0, "at_bound": []}
    score = {"form": "score sigmoid", "equation": "s(C) = a + (b - a) / (1 + (C_0 / C)^k)", "inputs": ["flops"]}
    score |= {"response": "score", "response_unit": "share", "compare": "linear", "n_points": 9, "sigma": 0.008}
    score |= {"values": {"a": 0.25, "b": 0.85, "C_0": 3e20, "k": 0.9}, "standard_errors": {"a": 0.01}}
    score |= {"intervals": {"a": [0.23, 0.27], "b": [0.8, None]}}
    score["curve"] = {"x": "flops", "at": at.tolist(), "fitted": line.tolist()}
    score["curve"] |= {"low": (line - 0.02).tolist(), "high": (line + 0.02).tolist()}
    score["observed"] = {"inputs": {"flops": c.tolist()}, "response": seen.tolist(), "fitted": fitted.tolist()}
    n, d = np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e11, 6)
    batch = 30 * n**0.1 * d**0.4
    form = {"form": "batch power law", "equation": "B = a N^b D^c", "inputs": ["n_params", "n_tokens"], "curve": None}
    form |= {"response": "batch", "response_unit": "tokens", "compare": "log", "n_points": 6, "sigma": 0.05}
    form |= {"values": {"a": 30.0, "b": 0.1, "c": 0.4}, "intervals": {}, "standard_errors": {}}
    inputs = {"n_params": n.tolist(), "n_tokens": d.tolist()}
    form["observed"] = {"inputs": inputs, "response": (batch * 1.03).tolist(), "fitted": batch.tolist()}
    return [common | score, common | form | {"at_bound": ["b"]}]


def identity(law: dict[str, Any] | None) -> dict[str, Any]:
    """How plan.json and design.json say which law they are of; nothing where none is given, as in old files."""
    if law is None:
        return {}
    said = {"name": "fit", "given": "law.json", "source": "huber fit to 24 runs", "n_counts": "non-embedding"}
    return {"law": said | {"fingerprint": law["fingerprint"]}}


def plan(law: dict[str, Any] | None = None) -> dict[str, Any]:
    """plan.json of a run at TARGET, with its neighbours and costs, as `areca plan` writes it. Exact FLOPs are EXTRA
    over 6 N D."""

    def run(n: float) -> dict[str, Any]:
        d = TARGET / 6 / n
        found = {"n_params": int(n), "n_params_total": int(1.1 * n), "n_tokens": int(d), "steps": 4000}
        found |= {"flops_exact": EXTRA * TARGET, "flops_6nd": 6 * int(n) * int(d), "tokens_per_param": d / n}
        return found | {"predicted_loss": float(loss(n, d)), "shape": {"n_layers": 12, "d_model": 1024}}

    n = best_size(TARGET * 8.5 / 6)
    best = run(n)
    at = best["predicted_loss"]
    energy = {"value": 3.2, "unit": "kWh", "kind": "estimated (TDP)", "watts": 700.0, "pue": 1.1, "source": "TDP"}
    carbon = {"value": 1.37, "unit": "kg CO2e", "kind": "estimated (TDP), grid assumed", "grid": {"kg_per_kwh": 0.429}}
    cost = {"chip": "h200", "chips": 8, "mfu": 0.4, "hours": 0.07, "chip_hours": 0.56, "usd": 2.1}
    value = {"budget_flops": EXTRA * TARGET, "best": best, "predicted_loss": at, "interval": [0.985 * at, 1.015 * at]}
    value |= {
        "level": 0.9,
        "half_width_relative": 0.015,
        "neighbours": {"half": run(n / 2), "double": run(2 * n)},
    }
    value |= {
        "flat_range": [int(0.8 * n), int(1.3 * n)],
        "baseline": {"loss": 1.1 * at, "flops": BASELINE, "label": "x", "rule": "best"},
    }
    beyond = {"n_params": 1.0, "n_tokens": 1.0, "flops": EXTRA * TARGET / BUDGETS[-1]}
    value |= {"extrapolation": beyond, "context": 2048} | identity(law)
    return value | {"batch": 256, "cost": cost | {"energy_kwh": energy, "carbon_kg": carbon}, "warnings": ["far."]}


def design(law: dict[str, Any] | None = None) -> dict[str, Any]:
    """design.json of three runs to add before the plan."""
    sizes = [best_size(3e15 * 8.5 / 6) * f for f in (0.4, 1.0, 2.5)]
    runs = [
        {"n_params": int(n), "n_tokens": int(3e15 / 6 / n), "flops_exact": 3e15, "steps": 900, "batch": 64,
         "predicted_loss": float(loss(n, 3e15 / 6 / n))}
        for n in sizes
    ]  # fmt: skip
    added = {"runs": runs, "flops": 9e15, "half_width_relative": 0.011, "narrowing_per_flop": 1e-22}
    target = plan(law)["best"]
    value = {"definition": "x", "n_params": target["n_params"], "n_tokens": target["n_tokens"], "flops": TARGET}
    value |= {"predicted_loss": 2.3, "interval": [2.25, 2.35], "level": 0.9, "half_width_relative": 0.02}
    value |= {"noise_half_width": 0.005, "allowance": 1e16, "proposed": added, "next_rung": added | {"runs": runs[:1]}}
    return value | {"at_the_rungs_cost": None, "context": 2048, "warnings": []} | identity(law)
