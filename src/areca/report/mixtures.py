"""What of each mixture the runs with an anneal read, from result.json: a table for the page."""

from collections.abc import Sequence

from areca.report import markup
from areca.report.markup import Cell, note, table, text
from areca.report.rundirs import Run
from areca.report.values import number, objects


def read(runs: Sequence[Run]) -> str:
    """A row for each corpus of each mixture of the runs that ended on another one than they began with."""
    rows: list[list[Cell | str]] = []
    for run in runs:
        for part in objects((run.result or {}).get("mixtures")):
            steps, epochs = part.get("steps"), part.get("epochs")
            if not (isinstance(steps, list) and len(steps) == 2 and isinstance(epochs, dict)):
                continue
            for corpus in epochs:
                sequences = number(part.get("sequences"), corpus)
                read = number(epochs, corpus)
                cells = [Cell(markup.fixed(sequences, 0), sequences), Cell(markup.fixed(read, 2), read)]
                rows.append([text(run.name), text(f"{part.get('mixture')}, steps {steps[0]} to {steps[1]}"),
                             text(corpus), *cells])  # fmt: skip
    if not rows:
        return ""
    words = "Counted one by one. In the anneal a corpus goes on where the main mixture left it, so epochs add up."
    return table(["run", "mixture", "corpus", "sequences", "epochs of it"], rows, "Mixtures", sortable=True) + note(
        words
    )
