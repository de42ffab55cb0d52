"""result.json: what a finished run got and what it cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from areca.config import RunConfig
from areca.footprint.regions import here
from areca.footprint.sessions import footprint
from areca.model.counts import count_params, exact_flops_per_token, six_nd
from areca.train import rewinds
from areca.train.efficiency import Machine, steady_tokens_per_second


def result_of(
    config: RunConfig,
    identity: Mapping[str, Any],
    held_out: Mapping[str, Any],
    along: Sequence[Mapping[str, Any]],
    *,
    rows: Sequence[Mapping[str, Any]],
    machine: Machine,
    past: rewinds.Rewinds,
    sessions: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    labels: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of result.json: N, D, FLOPs of both kinds, losses in nats, speed, seconds, energy and carbon.

    `rows` are the lines of metrics.jsonl, `identity` run.json, `held_out` the last evaluation, `along` all of them,
    `past` the rewinds, `sessions` what each process at work on the run used (`areca.footprint.sessions`). `measured`
    has what only the process knows, `seconds` of all steps among it. `loss_best` is the lowest held-out loss along the
    run, which is what early stopping would have got.
    """
    best = min(along, key=lambda e: (e["loss"], e["step"]))
    last = rows[-max(1, len(rows) // 20) :]
    n, tokens, context = count_params(config.model), rows[-1]["tokens"], config.data.context
    steady = steady_tokens_per_second(rows, context)
    return {
        "n_params": n.non_embedding,
        "n_params_total": n.total,
        "n_tokens": tokens,
        "flops_6nd": six_nd(config.model, tokens),
        "flops_exact": exact_flops_per_token(config.model, context) * tokens,
        "loss": held_out["loss"],
        "loss_by_corpus": held_out["by_corpus"],
        "heldout_tokens": held_out["tokens"],
        "loss_best": best["loss"],
        "loss_best_step": best["step"],
        **({"noise_scale": rows[-1]["noise_scale"]} if config.noise_parts else {}),
        "train_loss_last": sum(r["loss"] for r in last) / len(last),
        "steps": rows[-1]["step"],
        "rewinds": len(past),
        "skipped_tokens": rewinds.skipped_tokens(past, context),
        "tokens_per_second": steady,
        "mfu": machine.mfu(config, steady),
        "hfu": machine.hfu(config, steady),
        "peak_flops": machine.peak,
        "peak_source": machine.source,
        "fingerprint": identity["fingerprint"],
        **measured,
        "labels": dict(labels),
        **{k: identity[k] for k in ("together", "shared") if k in identity},
        **footprint(sessions, here(), training_seconds=measured["seconds"] + measured["saves"]["blocked_seconds"]),
    }
