"""Spikes of the loss and what training did about them: marks on its curve, and words. From events.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from areca.report import markup
from areca.report.figures import Figure, rounded
from areca.report.rundirs import Run
from areca.report.values import finite, number, positive

SHOWN = 12  # sentences of a page


@dataclass(frozen=True)
class Mark:
    """One event on a run's loss curve."""

    kind: str  # "spike" or "rewind"
    tokens: float
    loss: float
    words: str


def marks(run: Run) -> list[Mark]:
    """Spikes where they were and the steps that training went back to, in order of events.

    A spike's loss may be anything, so it is drawn at the top of the curve where it lies beyond; one that is not finite,
    or not of the loss, is drawn on the curve.
    """
    drawn = [loss for loss in map(finite, run.metrics["loss"]) if loss is not None]
    found: list[Mark] = []
    for event in run.events:
        spike = event.get("event") == "spike"
        step = number(event, "step" if spike else "to_step")
        if not drawn or step is None or event.get("event") not in ("spike", "rewind"):
            continue
        tokens, loss = _at(run, "tokens", step), _at(run, "loss", step)
        if spike and event.get("what") == "loss" and positive(event, "value"):
            loss = min(positive(event, "value") or 0.0, max(drawn))
        if spike:
            tokens = positive(event, "tokens") or tokens
        if tokens and loss is not None:
            found.append(Mark(str(event["event"]), tokens, loss, _words(event)))
    return found


def _at(run: Run, column: str, step: float) -> float | None:
    """A metric at a step; at the start, and past the last step there is, the nearest one's."""
    values = run.metrics[column]
    return finite(values[min(max(int(step), 1), len(values)) - 1]) if values else None


def traces(run: Run, named: set[str]) -> list[Figure]:
    """The marks of one run for plotly; a kind gets its place in the legend with the first run that has it."""
    data: list[Figure] = []
    for kind, symbol, colour in (("spike", "x", "@c3"), ("rewind", "triangle-left", "@ink")):
        of = [m for m in marks(run) if m.kind == kind]
        if not of:
            continue
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": kind,
                "legendgroup": kind,
                "showlegend": kind not in named,
                "legendrank": 1001,
                "x": rounded((m.tokens for m in of), 5),
                "y": rounded((m.loss for m in of), 5),
                "text": [f"{markup.text(run.name)}<br>{m.words}" for m in of],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": colour, "size": 9, "symbol": symbol},
            }
        )
        named.add(kind)
    return data


def sentences(runs: Sequence[Run]) -> list[str]:
    """What happened, one sentence an event, as HTML; the last says how many were left out."""
    found = [f"{markup.text(run.name)}: {m.words}." for run in runs for m in marks(run)]
    more = len(found) - SHOWN
    return found[:SHOWN] + ([f"{more} more {'is' if more == 1 else 'are'} in events.jsonl."] if more > 0 else [])


def _words(event: dict[str, Any]) -> str:
    if event["event"] == "spike":
        what = markup.text(str(event.get("what", "loss")).replace("_", " "))
        value, usual = number(event, "value"), number(event, "median")
        how = f"{what} not finite"
        if value is not None:
            how = f"{what} {markup.significant(value, 3)}, usually {markup.significant(usual, 3)}"
        return f"spike at step {number(event, 'step'):.0f} ({how})"
    words = f"back to step {number(event, 'to_step'):.0f}"
    first, last = number(event, "skipped_from"), number(event, "skipped_to")
    return words if first is None or last is None else f"{words} and past {markup.si(last - first)} examples"
