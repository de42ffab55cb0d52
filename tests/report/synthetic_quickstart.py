"""A quickstart's directory made up from a known law with noise, in the shape that the real stages write."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from areca.lawjson import fingerprint

E, A, B, ALPHA, BETA = 2.0, 60.0, 400.0, 0.33, 0.38
FLOPS_PER_ND = 8.5  # exact FLOPs over N D: more than 6 where attention and logits weigh
BUDGETS = (1e12, 3e12, 1e13)
FACTORS = (0.3, 0.55, 1.0, 1.8, 3.2)
NOISE = 0.003


def loss(n: Any, d: Any) -> Any:
    """The law that everything here is drawn from, nats per token."""
    return E + A * n**-ALPHA + B * d**-BETA


FINGERPRINT = fingerprint({"parametric": {"A": A, "B": B, "E": E, "alpha": ALPHA, "beta": BETA}})


def best_size(flops: float) -> float:
    """The N that minimises the law at a budget, in closed form (Hoffmann et al. 2022, equation 4)."""
    g = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    return g * (flops / FLOPS_PER_ND) ** (BETA / (ALPHA + BETA))


def write_quickstart(root: Path, seed: int = 0, miss: bool = False) -> Path:
    """Writes the directory; with `miss` the verifying run ends far above its predicted interval."""
    rng = np.random.default_rng(seed)
    runs = _ladder(root / "ladder", rng)
    law = _law(runs, rng)
    plan = _plan(runs)
    achieved = plan["predicted_loss"] * (1.06 if miss else 0.9956)
    write(root / "law.json", law)
    write(root / "plan.json", plan)
    write_run(root / "verify", plan["n_params"], plan["n_tokens"], achieved, rng, steps=2400)
    write(root / "store" / "store.json", _store())
    write(root / "samples.json", SAMPLES)
    stages = [("corpus", 21.4), ("tokenizer", 3.2), ("ladder", 391.0), ("fit", 6.1), ("plan", 0.4), ("verify", 171.9)]
    record = {"minutes": 10.0, "seed": seed, "stages": [{"name": n, "seconds": s} for n, s in stages]}
    write(root / "quickstart.json", record | {"started": 1767225600.0})
    return root


SAMPLES = [
    {
        "prompt": "The function returns",
        "text": " a new array of the given shape.\n\nParameters\n----------\nx : array_like",
    },
    {"prompt": "Hello!", "text": ' <script>alert("x")</script> <img src=http://example.invalid/a.png> & how are you?'},
]


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_run(
    path: Path,
    n: float,
    d: float,
    final: float,
    rng: np.random.Generator,
    budget: float | None = None,
    steps: int = 700,
) -> dict[str, Any]:
    """One finished run directory whose held-out loss is `final`; returns its result."""
    tokens = d * np.arange(1, steps + 1) / steps
    trend = final + (7.6 - final) * (1 + tokens / (0.004 * d)) ** -0.55 - (7.6 - final) * (1 + 250.0) ** -0.55
    rate = 0.01 * np.minimum(1, tokens / (0.05 * d)) * (0.55 + 0.45 * np.cos(np.pi * tokens / d))
    norm = 0.4 + 2.5 * np.exp(-tokens / (0.02 * d)) + 0.05 * rng.gamma(2.0, 1.0, steps)
    path.mkdir(parents=True, exist_ok=True)
    with (path / "metrics.jsonl").open("w") as f:
        for i in range(steps):
            row = {"step": i + 1, "tokens": int(tokens[i]), "loss": trend[i] + 0.05 * rng.normal(), "z_loss": 1e-3}
            row |= {"grad_norm": norm[i], "update_norm": 0.1, "param_norm": 40.0, "learning_rate": rate[i], "batch": 16}
            f.write(json.dumps(row | {"tokens_per_second": 31_000.0, "mfu": None, "hfu": None, "seconds": 0.05}) + "\n")
    events = [{"time": 1767225600.0, "event": "start", "step": 0, "devices": 1}]
    events += [{"time": 1767225600.0 + s / 10, "event": "save", "step": s} for s in range(200, steps, 200)]
    events += [{"time": 1767225690.0, "event": "evaluate", "step": steps, "loss": final, "by_corpus": {"docs": final}}]
    events += [{"time": 1767225700.0, "event": "finish", "step": steps}]
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    versions = {"areca": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2", "python": "3.11.2", "numpy": "2.3.5"}
    topology = {"backend": "cpu", "devices": 1, "threads": 1, "device_kind": "cpu"}
    counts = {"n_params": int(n), "n_params_total": int(n + 120_000)}
    store = {"path": "store", "fingerprint": "ab" * 32}
    info = {"config": {}, "fingerprint": f"{int(n):064x}", "store": store, "versions": versions}
    write(path / "run.json", info | {"topology": topology, "counts": counts})
    flops, seconds = FLOPS_PER_ND * n * d, d / 31_000
    kwh = {"value": seconds * 15 / 3.6e6, "kind": "estimated (TDP)"}
    result = counts | {"n_tokens": int(d), "flops_6nd": 6 * n * d, "flops_exact": flops, "loss": final, "steps": steps}
    result |= {"loss_by_corpus": {"docs": final - 0.1, "chitchat": final + 0.2}, "train_loss_last": final - 0.03}
    result |= {
        "seconds": seconds,
        "compile_seconds": 2.0,
        "tokens_per_second": 31_000.0,
        "mfu": 0.31,
        "hfu": 0.34,
        "energy_kwh": kwh,
    }
    result |= {"carbon_kg": {"value": kwh["value"] * 0.4, "kind": "estimated (TDP)"}, "parameters_sha256": "cd" * 32}
    if budget:
        result["budget_flops"] = budget
    write(path / "result.json", result)
    return result


def _ladder(root: Path, rng: np.random.Generator) -> list[dict[str, Any]]:
    runs, entries = [], []
    for budget in BUDGETS:
        for factor in FACTORS:
            n = round(best_size(budget) * factor)
            d = round(budget / FLOPS_PER_ND / n)
            name = f"c{budget:.0e}-n{n}"
            final = float(loss(n, d) * np.exp(NOISE * rng.normal()))
            runs.append(write_run(root / "runs" / name, n, d, final, rng, budget) | {"label": name})
            entries.append({"name": name, "budget_flops": budget, "path": f"runs/{name}"})
    write(root / "ladder.json", {"budgets_flops": list(BUDGETS), "runs": entries})
    return runs


def _law(runs: list[dict[str, Any]], rng: np.random.Generator) -> dict[str, Any]:
    truth = np.array([np.log(A), np.log(B), np.log(E), ALPHA, BETA])
    shift = rng.normal(size=(200, 2))
    moves = np.array([[0.1, 0, 0.01, 0.009, 0], [0, 0.1, 0.01, 0, 0.008]])
    bootstrap = truth + shift @ moves
    around = {"A": (45, 80), "B": (320, 500), "E": (1.93, 2.07), "alpha": (0.31, 0.35), "beta": (0.36, 0.4)}
    parametric = {
        "A": A,
        "B": B,
        "E": E,
        "alpha": ALPHA,
        "beta": BETA,
        "intervals": {k: list(v) for k, v in around.items()},
    }
    parametric |= {
        "status": "converged",
        "share_of_starts": 0.46,
        "objective_value": 3.1e-5,
        "n_points": 15,
        "sigma": 0.0032,
        "bootstrap": bootstrap.tolist(),
    }
    valleys = []
    for budget in BUDGETS:
        group = [r for r in runs if r["budget_flops"] == budget]
        x, y = np.log([r["n_params"] for r in group]), np.log([r["loss"] for r in group])
        c, b, a = np.polyfit(x, y, 2)
        n = float(np.exp(-b / (2 * c)))
        valley = {"budget_flops": budget, "a": a, "b": b, "c": c, "n_opt": n, "n_opt_interval": [n * 0.82, n * 1.2]}
        valley |= {"d_opt": budget / FLOPS_PER_ND / n, "loss_min": float(np.exp(a - b * b / (4 * c))), "interior": True}
        valley |= {"curved": True, "points": [], "n_flat": None, "loss_min_interval": None}
        valleys.append(valley)
    x, y = np.log(BUDGETS), np.log([v["loss_min"] for v in valleys])
    slope, intercept = np.polyfit(x, y, 1)
    compute = {"exponent": -slope, "exponent_interval": [-slope * 0.98, -slope * 1.02], "floor": 0.0, "points": []}
    compute["c_c_flops"] = float(np.exp(-intercept / slope))
    isoflop = {"valleys": valleys, "n_exponent": 0.53, "n_exponent_interval": [0.47, 0.6], "d_exponent": 0.47}
    law = {"parametric": parametric, "isoflop": isoflop | {"d_exponent_interval": [0.4, 0.53]}, "objective": "huber"}
    law |= {"fingerprint": FINGERPRINT, "columns": {"flops": "flops_exact (exact training FLOPs)"}}
    return law | {"compute": compute, "delta": 1e-3, "observations": [], "notes": []}


def _plan(runs: list[dict[str, Any]]) -> dict[str, Any]:
    flops = 4.5e13
    n = round(best_size(flops))
    d = round(flops / FLOPS_PER_ND / n)
    predicted = float(loss(n, d))
    plan = {
        "config": {"d_model": 128, "n_layers": 5},
        "n_params": n,
        "n_tokens": d,
        "flops_exact": flops,
        "flops_6nd": 6.0 * n * d,
    }
    plan |= {
        "predicted_loss": predicted,
        "interval_90": [predicted * 0.985, predicted * 1.015],
        "half_width_relative": 0.015,
    }
    plan["law"] = {"name": "fit", "given": "law.json", "source": "huber fit to 15 runs", "fingerprint": FINGERPRINT}
    return plan | {"naive_baseline_loss": min(r["loss"] for r in runs), "best_rung": "c1e+13", "warnings": []}


def _store() -> dict[str, Any]:
    sizes = [("docs", 21_400, 19_200_000, 5_400_000, 0.083), ("chitchat", 7_168, 9_400_000, 2_900_000, 0.004)]
    sizes += [("code", 1_650, 14_800_000, 4_800_000, 0.021)]
    corpora = []
    for name, documents, size, tokens, share in sizes:
        corpus = {"name": name, "train_documents": documents, "heldout_documents": documents // 20, "bytes": size}
        corpus |= {"train_tokens": tokens, "heldout_tokens": tokens // 20, "weight": None}
        removed = {kind: {"documents": 9, "bytes": 9, "share": share / 2} for kind in ("exact", "near")}
        corpora.append(corpus | {"read": {"documents": documents, "bytes": size}, "removed": removed})
    return {"vocab_size": 1024, "fingerprint": "ab" * 32, "corpora": corpora}
