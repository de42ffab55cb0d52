"""The sections of the page as HTML. Each says what is missing where its files are not there."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from areca.report import markup
from areca.report.gather import Gathered, Run, number, objects, pair
from areca.report.law import Law
from areca.report.markup import Cell, absent, facts, note, percent, power, section, si, table, text

LAW_NAMES = {
    "E": "E, irreducible loss (nats per token)",
    "A": "A, of the size term",
    "B": "B, of the data term",
    "alpha": "α, exponent of size",
    "beta": "β, exponent of data",
    "n_exponent": "best N grows as C to the power",
    "d_exponent": "best D grows as C to the power",
}
EVENTS_SHOWN = 60


def headline(found: Gathered, verdict: dict[str, Any], summary: dict[str, Any]) -> str:
    """Predicted against achieved on one scale, the verdict in words, and the key numbers."""
    predicted, achieved = verdict["predicted_loss"], verdict["achieved_loss"]
    if predicted is None:
        return section("headline", "Prediction", absent("There is no plan yet, so nothing was predicted."))
    plan_flops, best = verdict["flops_exact"], max((r.number("flops_exact") or 0 for r in found.runs), default=0)
    tiles = [
        ("prediction error", percent(verdict["relative_error"], 2, sign=True)),
        ("half-width of the 90% interval", "±" + percent(verdict["half_width_relative"], 2)),
        ("error as a share of the drop", percent(verdict["error_share_of_drop"], 0)),
        ("N, without embeddings", si(verdict["n_params"])),
        ("D, tokens", si(verdict["n_tokens"])),
        ("budget, exact FLOPs", power(plan_flops)),
        ("times the largest rung", markup.fixed(plan_flops / best, 1) if plan_flops and best else markup.NONE),
        ("time, all stages", markup.duration(summary["seconds"])),
        ("energy, " + _kind(summary["energy_kwh"]), _energy(summary["energy_kwh"])),
    ]
    cards = "".join(f'<div class="tile"><dd>{value}</dd><dt>{name}</dt></div>' for name, value in tiles)
    words = "".join(f"<p>{sentence}</p>" for sentence in verdict_sentences(verdict))
    css = {True: "hit", False: "missed", None: "open"}[verdict["covered"] if achieved else None]
    body = f'<div class="verdict {css}">{words}</div>{_scale(verdict)}<dl class="tiles">{cards}</dl>'
    warnings = [text(w) for w in verdict["warnings"] if isinstance(w, str)] if isinstance(verdict["warnings"], list) else []
    if warnings:
        body += f'<ul class="warnings">{"".join(f"<li>{w}</li>" for w in warnings)}</ul>'
    return section("headline", "Predicted against achieved", body)


def verdict_sentences(verdict: dict[str, Any]) -> list[str]:
    """What came of the prediction, said as plainly when it missed as when it held."""
    predicted, achieved, bounds = verdict["predicted_loss"], verdict["achieved_loss"], verdict["predicted_interval_90"]
    if achieved is None:
        return [f"The law predicts a held-out loss of <b>{predicted:.3f}</b>. The run that tests it has not finished."]
    error = verdict["relative_error"]
    first = f"The law predicted <b>{predicted:.3f}</b> nats per token; training gave <b>{achieved:.3f}</b>, "
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
            bar = f'<i class="{"bar" if css == "predicted" else "shade"}" style="left:{place(bounds[0])};width:{width:.2f}%"></i>'
        dot = f'<i class="dot {css}" style="left:{place(value)}"></i>'
        lines += f'<div class="row"><span>{name}</span><div class="track">{bar}{dot}</div><b>{value:.3f}</b></div>'
    caption = "Held-out loss in nats per token, lower is better; the shaded strip is the 90% interval of the prediction."
    return f'<div class="scale">{lines}</div>{note(caption)}'


def law_table(law: Law | None) -> str:
    """The fitted numbers with their intervals, and how the fit went."""
    if law is None:
        return absent("There is no fitted law yet.")
    entries = [*law.parameters.values(), *law.exponents, *law.compute]
    rows = [[_law_name(p.name), markup.significant(p.value), markup.interval(p.interval)] for p in entries]
    names = {"converged": "converged", "share_of_starts": "share of starts that reached the best"}
    status = [(names.get(k, text(k.replace("_", " "))), _status(k, v)) for k, v in law.status.items()]
    warning = ""
    if law.status.get("converged") is False:
        warning = '<p class="absent">The fit did not converge; its numbers are not a result.</p>'
    return warning + table(["parameter", "value", "90% interval"], rows, "Fitted law") + (facts(status) if status else "")


def _law_name(name: str) -> str:
    return LAW_NAMES.get(name, "L(C): " + text(name.replace("_", " ")))


def _status(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "<b>no</b>"
    if isinstance(value, int | float):
        return percent(value, 0) if key == "share_of_starts" else markup.significant(value)
    return text(value)


def runs_table(runs: Sequence[Run]) -> str:
    """Every run, one a row; the headers sort."""
    headers = ["run", "N", "N total", "D", "exact FLOPs", "6ND FLOPs", "held-out loss", "tokens/s", "MFU", "time"]
    rows = []
    for run in runs:
        unfinished = "" if run.result is not None else ' <span class="tag">not finished</span>'
        cells: list[Cell | str] = [Cell(text(run.name) + unfinished, run.name)]
        columns = (
            ("n_params", si), ("n_params_total", si), ("n_tokens", si), ("flops_exact", power), ("flops_6nd", power),
            ("loss", lambda v: markup.fixed(v, 4)), ("tokens_per_second", si), ("mfu", percent), ("seconds", markup.duration),
        )  # fmt: skip
        for key, shown in columns:
            value = run.number(key)
            cells.append(Cell(shown(value), value))
        rows.append(cells)
    return table(headers, rows, "Runs", sortable=True)


def corpora(store: dict[str, Any] | None) -> str:
    """How much text of each kind there is, and what was removed as duplicates."""
    if store is None:
        return section("corpus", "Corpus", absent("There is no token store yet."))
    kinds = objects(store.get("corpora"))
    total = sum(number(k, "train_tokens") or 0 for k in kinds) or 1.0
    rows = []
    for kind in kinds:
        train = number(kind, "train_tokens")
        share = (train or 0) / total
        bar = f'<div class="share"><i style="width:{100 * share:.1f}%"></i><span>{percent(share, 0)}</span></div>'
        rows.append(
            [
                text(kind.get("name", "?")),
                Cell(si(number(kind, "documents")), number(kind, "documents")),
                Cell(si(number(kind, "bytes")), number(kind, "bytes")),
                Cell(si(train), train),
                Cell(si(number(kind, "heldout_tokens")), number(kind, "heldout_tokens")),
                bar,
                percent(_removed(kind)),
            ]
        )
    headers = ["corpus", "documents", "bytes", "train tokens", "held-out tokens", "share of train", "duplicates removed"]
    body = table(headers, rows, "Corpus", sortable=True) if rows else absent("The token store lists no corpora.")
    entries = [("vocabulary", si(number(store, "vocab_size"))), ("duplicates removed", percent(_removed(store)))]
    return section("corpus", "Corpus", body, facts([(k, v) for k, v in entries if v != markup.NONE]))


def _removed(item: dict[str, Any]) -> float | None:
    """The share of documents removed as duplicates, as recorded or from counts."""
    for key in ("duplicate_share", "duplicates_share", "removed_share", "share_removed"):
        if (share := number(item, key)) is not None:
            return share
    return None


def sample_texts(samples: list[dict[str, Any]] | None) -> str:
    """What the model writes after each prompt."""
    if not samples:
        return section("samples", "Samples", absent("There are no samples yet."))
    quotes = "".join(
        f'<blockquote><span class="prompt">{text(s.get("prompt", ""))}</span>{text(s.get("text", ""))}</blockquote>'
        for s in samples
    )
    words = "Written by the verifying run's model; the prompt is in bold. A model this small shows form, not knowledge."
    return section("samples", "Samples", note(words), quotes)


def costs(found: Gathered, summary: dict[str, Any]) -> str:
    """Seconds by stage, energy and carbon, each energy figure with its kind."""
    energy, carbon = summary["energy_kwh"], summary["carbon_kg"]
    entries = [("time", markup.duration(summary["seconds"]))]
    if energy:
        entries.append((f"energy, {_kind(energy)}", _energy(energy)))
    if carbon:
        entries.append((f"carbon, {_kind(carbon)}", f"{markup.significant(1000 * carbon['value'], 3)} g CO<sub>2</sub>e"))
    body = facts(entries)
    if energy and "estimat" in energy["kind"].lower():
        body += note("Energy and carbon are estimates, not measurements: see the kind beside each figure.")
    if not energy:
        body += absent("No run recorded its energy.")
    elif energy["runs_without"]:
        body += absent(f"{energy['runs_without']} of the runs recorded no energy and are not in the sum.")
    stages = objects((found.quickstart or {}).get("stages"))
    known = [(text(s.get("name", "?")), number(s, "seconds")) for s in stages]
    longest = max((s for _, s in known if s), default=None)
    if longest:
        rows = [[n, markup.duration(s), f'<div class="share"><i style="width:{100 * (s or 0) / longest:.1f}%"></i></div>'] for n, s in known]
        body += table(["stage", "time", ""], rows, "Time by stage")
    return section("costs", "Time, energy and carbon", body)


def events(runs: Sequence[Run]) -> str:
    """Starts, saves, resumes and spikes of each run: counts, then what is rarer than a save."""
    counts: list[list[Cell | str]] = []
    lines: list[list[Cell | str]] = []
    kinds = sorted({str(e.get("event", "?")) for run in runs for e in run.events})
    for run in runs:
        of = [str(e.get("event", "?")) for e in run.events]
        counts.append([text(run.name), *(Cell(str(of.count(k)), of.count(k)) for k in kinds)])
        for event in run.events:
            if event.get("event") not in ("save", "evaluate"):
                lines.append(_event_row(run, event))
    if not kinds:
        return section("events", "Events", absent("No run recorded events."))
    more = note(f"The last {EVENTS_SHOWN} of {len(lines)}; all are in events.jsonl.") if len(lines) > EVENTS_SHOWN else ""
    return section(
        "events",
        "Events",
        table(["run", *map(text, kinds)], counts, "Events by kind", sortable=True),
        more,
        table(["run", "time (UTC)", "event", "step", "details"], lines[-EVENTS_SHOWN:], "Events") if lines else "",
    )


def _event_row(run: Run, event: dict[str, Any]) -> list[Cell | str]:
    when = number(event, "time")
    try:
        shown = datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S") if when is not None else markup.NONE
    except (OverflowError, OSError, ValueError):
        shown = markup.NONE
    known = ("time", "event", "step")
    details = ", ".join(f"{k} {v}" for k, v in event.items() if k not in known and not isinstance(v, dict | list))
    step = number(event, "step")
    name = f"{step:.0f}" if step is not None else markup.NONE
    return [text(run.name), shown, text(event.get("event", "?")), name, f'<span class="wrap">{text(details)}</span>']


def provenance(found: Gathered, versions: str) -> str:
    """Versions, topology and fingerprints; differences between runs are said."""
    runs = [run for run in found.all_runs if run.info]
    entries: list[tuple[str, str]] = [("report written by", versions)]
    for title, key in (("versions", "versions"), ("topology", "topology")):
        values = {_flat((run.info or {}).get(key)) for run in runs} - {""}
        if len(values) == 1:
            entries.append((title, text(values.pop())))
        elif values:
            entries.append((f"{title} (<b>differ between runs</b>)", "<br>".join(text(v) for v in sorted(values))))
    stores = {str(s["fingerprint"]) for run in runs if isinstance(s := (run.info or {}).get("store"), dict) and s.get("fingerprint")}
    if found.store and found.store.get("fingerprint"):
        stores.add(str(found.store["fingerprint"]))
    if stores:
        differ = " (<b>differ</b>)" if len(stores) > 1 else ""
        entries.append((f"token store, SHA-256{differ}", "<br>".join(_hash(s) for s in sorted(stores))))
    if found.quickstart and found.quickstart.get("seed") is not None:
        entries.append(("seed", text(found.quickstart["seed"])))
    rows: list[list[Cell | str]] = [
        [text(run.name), _hash((run.info or {}).get("fingerprint")), _hash((run.result or {}).get("parameters_sha256"))]
        for run in found.all_runs
    ]
    hashes = table(["run", "configuration, SHA-256", "final parameters, SHA-256"], rows, "Fingerprints")
    hashes = f"<details><summary>Fingerprints of the runs</summary>{hashes}</details>"
    return section("provenance", "Provenance", facts(entries), hashes)


def _flat(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else ""


def _hash(value: Any) -> str:
    return f'<code title="{text(value)}">{text(str(value)[:16])}</code>' if value else markup.NONE


def _kind(figure: dict[str, Any] | None) -> str:
    return text(figure["kind"]) if figure else "not recorded"


def _energy(figure: dict[str, Any] | None) -> str:
    if not figure:
        return markup.NONE
    value = figure["value"]
    return f"{markup.significant(1000 * value, 3)} Wh" if value < 1 else f"{markup.significant(value, 3)} kWh"


__all__ = ["corpora", "costs", "events", "headline", "law_table", "pair", "provenance", "runs_table", "sample_texts"]
