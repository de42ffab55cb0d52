"""What checkpoints cost the runs, from result.json: a table for the page."""

from collections.abc import Sequence

from areca.report import markup
from areca.report.markup import Cell, note, percent, table, text
from areca.report.rundirs import Run
from areca.report.values import number


def costs(runs: Sequence[Run]) -> str:
    """What checkpoints cost each run that recorded it: how many on the way, seconds each, share of the time."""
    rows: list[list[Cell | str]] = []
    for run in runs:
        of = (run.result or {}).get("saves")
        if number(of, "count") is None:
            continue
        columns = (
            ("count", lambda v: markup.fixed(v, 0)),
            ("seconds_each", markup.duration),
            ("share", percent),
            ("blocked_seconds", markup.duration),
            ("slowed_seconds", markup.duration),
            ("last_seconds", markup.duration),
        )
        cells = [Cell(shown(number(of, key)), number(of, key)) for key, shown in columns]
        rows.append([text(run.name), *cells])
    if not rows:
        return ""
    headers = [
        "run",
        "saves on the way",
        "each",
        "share of time",
        "blocked",
        "slowed steps (estimated)",
        "the last one",
    ]
    words = (
        "A save holds training up (measured) and slows the steps beside its write (estimated from those without one);"
        " the last one is waited for when training is over and is not in the share."
    )
    return table(headers, rows, "Saves", sortable=True) + note(words)
