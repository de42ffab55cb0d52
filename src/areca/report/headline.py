"""The first section: what was predicted, what came of it, and the key numbers."""

from typing import Any

from areca.report import markup
from areca.report.costs import amount, kind
from areca.report.gather import Gathered
from areca.report.markup import absent, note, percent, power, section, si, text


def headline(found: Gathered, verdict: dict[str, Any]) -> str:
    """Predicted against achieved on one scale, the verdict in words, and the key numbers."""
    predicted, achieved = verdict["predicted_loss"], verdict["achieved_loss"]
    if predicted is None:
        return section("headline", "Prediction", absent("There is no plan yet, so nothing was predicted."))
    plan_flops, best = verdict["flops_exact"], max((r.number("flops_exact") or 0 for r in found.runs), default=0)
    tiles = [
        ("prediction error", percent(verdict["relative_error"], 2, sign=True)),
        ("error of the naive guess", percent(verdict["naive_relative_error"], 1, sign=True)),
        ("half-width of the 90% interval", "±" + percent(verdict["half_width_relative"], 2)),
        ("error as a share of the drop", percent(verdict["error_share_of_drop"], 0)),
        ("N, without embeddings", si(verdict["n_params"])),
        ("D, tokens", si(verdict["n_tokens"])),
        ("budget, exact FLOPs", power(plan_flops)),
        ("times the largest rung", markup.fixed(plan_flops / best, 1) if plan_flops and best else markup.NONE),
        ("time, all stages", markup.duration(verdict["seconds"], verdict["seconds_at_least"])),
        ("energy, " + kind(verdict["energy_kwh"]), amount(verdict["energy_kwh"])),
    ]
    cards = "".join(f'<div class="tile"><dd>{value}</dd><dt>{name}</dt></div>' for name, value in tiles)
    words = "".join(f"<p>{sentence}</p>" for sentence in verdict_sentences(verdict))
    css = {True: "hit", False: "missed", None: "open"}[verdict["covered"] if achieved else None]
    body = f'<div class="verdict {css}">{words}</div>{_scale(verdict)}<dl class="tiles">{cards}</dl>'
    warnings = (
        [text(w) for w in verdict["warnings"] if isinstance(w, str)] if isinstance(verdict["warnings"], list) else []
    )
    if warnings:
        body += f'<ul class="warnings">{"".join(f"<li>{w}</li>" for w in warnings)}</ul>'
    return section("headline", "Predicted against achieved", body)


def verdict_sentences(verdict: dict[str, Any]) -> list[str]:
    """What came of the prediction, said as plainly when it missed as when it held."""
    predicted, achieved, bounds = verdict["predicted_loss"], verdict["achieved_loss"], verdict["predicted_interval_90"]
    if achieved is None:
        return [f"The law predicts a held-out loss of <b>{predicted:.3f}</b>. The run that tests it has not finished."]
    error = verdict["relative_error"]
    which = "The law" if (verdict.get("plan_law") or {}).get("of_this_law") is not False else "The plan's own law"
    first = f"{which} predicted <b>{predicted:.3f}</b> nats per token; training gave <b>{achieved:.3f}</b>, "
    side = "too high" if error > 0 else "too low"
    sentences = [first + f"so the prediction was {abs(error):.2%} {side}."]
    if verdict["covered"] is True:
        sentences.append(f"The achieved loss lies inside the 90% interval, {bounds[0]:.3f} to {bounds[1]:.3f}.")
    elif verdict["covered"] is False:
        where, by = ("above", achieved - bounds[1]) if achieved > bounds[1] else ("below", bounds[0] - achieved)
        sentences.append(
            f"<b>The prediction missed:</b> the achieved loss lies {by:.3f} nats {where} the 90% interval, "
            f"{bounds[0]:.3f} to {bounds[1]:.3f}."
        )
    baseline, naive = verdict["naive_baseline_loss"], verdict["naive_relative_error"]
    if naive is not None:
        start = f"The naive guess, the best rung's loss of {baseline:.3f} carried over, is off by {abs(naive):.1%}"
        closer = abs(error) < abs(naive)
        sentences.append(start + ("." if closer else ": <b>closer than the law</b>."))
    return sentences


def _scale(verdict: dict[str, Any]) -> str:
    """A small dot plot: the prediction with its interval, the achieved loss, the naive baseline."""
    bounds = verdict["predicted_interval_90"]
    rows = [
        ("predicted", verdict["predicted_loss"], "predicted"),
        ("achieved", verdict["achieved_loss"], "achieved"),
        ("best rung, carried over", verdict["naive_baseline_loss"], "baseline"),
    ]
    values = [v for _, v, _ in rows if v is not None] + list(bounds or [])
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or 0.01

    def place(value: float) -> str:
        return f"{100 * (value - low + room) / (high - low + 2 * room):.2f}%"

    lines = ""
    for name, value, css in rows:
        if value is None:
            continue
        bar = ""
        if bounds:
            width = 100 * (bounds[1] - bounds[0]) / (high - low + 2 * room)
            strip = "bar" if css == "predicted" else "shade"
            bar = f'<i class="{strip}" style="left:{place(bounds[0])};width:{width:.2f}%"></i>'
        dot = f'<i class="dot {css}" style="left:{place(value)}"></i>'
        lines += f'<div class="row"><span>{name}</span><div class="track">{bar}{dot}</div><b>{value:.3f}</b></div>'
    caption = (
        "Held-out loss in nats per token, lower is better; the shaded strip is the 90% interval of the prediction."
    )
    return f'<div class="scale">{lines}</div>{note(caption)}'
