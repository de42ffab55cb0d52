"""The sections of the page as HTML. Each says what is missing where its files are not there."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from areca.report import markup
from areca.report.gather import Gathered
from areca.report.markup import Cell, absent, facts, note, percent, power, section, si, table, text
from areca.report.rundirs import Run
from areca.report.values import number, objects, sentences

EVENTS_SHOWN = 60


def runs_table(runs: Sequence[Run]) -> str:
    """Every run, one a row; the headers sort."""
    headers = ["run", "N", "N total", "D", "exact FLOPs", "6ND FLOPs", "held-out loss", "tokens/s", "MFU", "HFU"]
    headers += ["time"]
    rows = []
    for run in runs:
        unfinished = "" if run.result is not None else ' <span class="tag">not finished</span>'
        cells: list[Cell | str] = [Cell(f"{text(run.name)}{unfinished}", run.name)]
        columns = (
            ("n_params", si), ("n_params_total", si), ("n_tokens", si), ("flops_exact", power), ("flops_6nd", power),
            ("loss", lambda v: markup.fixed(v, 4)), ("tokens_per_second", si), ("mfu", percent), ("hfu", percent),
            ("seconds", markup.duration),
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
    for corpus in kinds:
        train, documents = number(corpus, "train_tokens"), _documents(corpus)
        share = (train or 0) / total
        bar = markup.bar(share, percent(share, 0))
        rows.append(
            [
                text(corpus.get("name", "?")),
                Cell(si(documents), documents),
                Cell(si(number(corpus, "bytes")), number(corpus, "bytes")),
                Cell(si(train), train),
                Cell(si(number(corpus, "heldout_tokens")), number(corpus, "heldout_tokens")),
                bar,
                percent(_removed(corpus)),
            ]
        )
    headers = [
        "corpus",
        "documents",
        "bytes",
        "train tokens",
        "held-out tokens",
        "share of train",
        "duplicates removed",
    ]
    body = table(headers, rows, "Corpus", sortable=True) if rows else absent("The token store lists no corpora.")
    vocabulary = number(store, "vocab_size")
    entries = [
        ("train tokens in all", si(total)),
        ("vocabulary", f"{vocabulary:.0f} tokens" if vocabulary else markup.NONE),
    ]
    words = "Bytes and documents are what was kept; duplicates, exact and near, are a share of the bytes read."
    return section("corpus", "Corpus", body, note(words), facts(entries))


def _removed(item: dict[str, Any]) -> float | None:
    """The share of a corpus' bytes that were removed as exact or near duplicates."""
    removed = item.get("removed")
    if not isinstance(removed, dict):
        return None
    shares = [number(removed.get(kind), "share") for kind in ("exact", "near")]
    return sum(s or 0.0 for s in shares) if any(s is not None for s in shares) else None


def _documents(item: dict[str, Any]) -> float | None:
    counts = [number(item, key) for key in ("train_documents", "heldout_documents")]
    return sum(c or 0.0 for c in counts) if any(c is not None for c in counts) else None


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


def events(runs: Sequence[Run]) -> str:
    """Starts, saves, resumes and spikes of each run: counts, then one by one what is not routine."""
    counts: list[list[Cell | str]] = []
    lines: list[list[Cell | str]] = []
    kinds = sorted({str(e.get("event", "?")) for run in runs for e in run.events})
    routine = ("save", "evaluate", "start", "finish") if len(runs) > 3 else ("save", "evaluate")
    for run in runs:
        of = [str(e.get("event", "?")) for e in run.events]
        counts.append([text(run.name), *(Cell(str(of.count(k)), of.count(k)) for k in kinds)])
        lines += [_event_row(run, event) for event in run.events if event.get("event") not in routine]
    if not kinds:
        return section("events", "Events", absent("No run recorded events."))
    more = (
        note(f"The last {EVENTS_SHOWN} of {len(lines)}; all are in events.jsonl.") if len(lines) > EVENTS_SHOWN else ""
    )
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
    for title, key in (("versions", "versions"), ("topology", "topology"), ("shared programs", "together")):
        values = {_flat((run.info or {}).get(key)) for run in runs} - {""}
        if len(values) == 1:
            entries.append((title, text(values.pop())))
        elif values:
            entries.append((f"{title} (<b>differ between runs</b>)", "<br>".join(text(v) for v in sorted(values))))
    stores = {
        str(s["fingerprint"])
        for run in runs
        if isinstance(s := (run.info or {}).get("store"), dict) and s.get("fingerprint")
    }
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
    hashes = f"<details><summary>Fingerprints of the runs</summary>{hashes}</details>" if rows else ""
    law = found.law or {}
    sources = sentences(law.get("sources"))
    if sources:
        entries.append(("the law was fitted to", "<br>".join(text(s) for s in sources)))
    if number(law, "seed") is not None and not found.quickstart:
        entries.append(("seed of the law's resampling", text(law["seed"])))
    return section("provenance", "Provenance", facts(entries), hashes)


def _flat(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else ""


def _hash(value: Any) -> str:
    return f'<code title="{text(value)}">{text(str(value)[:16])}</code>' if value else markup.NONE
