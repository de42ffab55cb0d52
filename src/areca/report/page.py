"""Builds report.html and report.json. The page is one file that opens offline, with all it needs inside."""

import json
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from areca import __version__
from areca.errors import ConfigError
from areca.files import write_atomic, write_json
from areca.report import curves, plots, sections, spikes
from areca.report.figures import Budgets, Figure
from areca.report.gather import Gathered, gather
from areca.report.headline import headline
from areca.report.law import Law, Point, points_of, read_law
from areca.report.markup import absent, note, plot, section, text
from areca.report.summary import summarise

TITLES = {
    "quickstart": "Quickstart: a scaling law put to the test",
    "ladder": "A ladder of runs",
    "runs": "Training runs",
}
VALLEYS_NOTE = (
    "Each budget is spent on models of several sizes. The parabola of ln L in ln N has its lowest point (star) at the "
    "best size; the bar is that size's 90% interval."
)
OPTIMA_NOTE = "The valleys' lowest points and the lines through them; open markers are the planned run."
LAW_NOTE = (
    "The line is L(N, D) = E + A/N<sup>α</sup> + B/D<sup>β</sup> at the best N and D of each budget; runs of other "
    "sizes lie above it. Colours and shapes are the budgets of the valleys. The band is the law's own 90% interval, "
    "from fits to resampled runs; the interval of the prediction also has the scatter of single runs."
)
RESIDUALS_NOTE = (
    "What the law leaves unexplained. A pattern along N would mean that its form is wrong here, not only that runs "
    "scatter."
)
TRAINING_NOTE = (
    f"Training loss, averaged over neighbouring steps to at most {curves.POINTS} points a run; dots are held-out loss."
)
RUNS_NOTE = (
    "N leaves embeddings out, N total has them. Exact FLOPs count every matrix product of training, attention and "
    "logits included; 6ND is the usual approximation. MFU needs the machine's peak and is blank where that is "
    "not known; HFU counts what was rematerialized as well. A header sorts."
)


def build_report(paths: Sequence[Path | str], out_dir: Path | str, *, figures: bool = False) -> dict[str, Any]:
    """Writes `out_dir`/report.html and report.json from files under `paths`, and returns report.json's content.

    `paths` is a quickstart's directory, a ladder's, or any list of run directories. With `figures` also writes SVG
    and PNG pictures (see `static`). Raises DataError for a path that is none of these or holds a damaged file, before
    anything is written.
    """
    found = gather(paths)
    out = Path(out_dir)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a directory.")
    law = read_law(found.law)
    summary = summarise(found, law)
    with np.errstate(all="ignore"):  # a law can be absurd; what is not finite becomes a gap
        html = render(found, law, summary)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.html", html)
    write_json(out / "report.json", summary)
    if figures:
        from areca.report.static import draw

        with np.errstate(all="ignore"):
            draw(found, law, out)
    return summary


def render(found: Gathered, law: Law | None, summary: dict[str, Any]) -> str:
    """The page as text."""
    budgets = Budgets([run.budget_flops for run in found.runs])
    points = points_of(found.runs, law)
    checked = points_of([found.verify]) if found.verify else []
    achieved = checked[0] if checked else None
    drawn: dict[str, Figure] = {}

    def place(name: str, label: str, made: Figure | None, otherwise: str, words: str = "", height: int = 420) -> str:
        if made is None:
            return absent(otherwise)
        drawn[name] = made
        return plot(name, label, height) + (note(words) if words else "")

    parts: list[tuple[str, str]] = []
    if found.kind == "quickstart":
        parts.append(("Prediction", headline(found, summary)))
    if law is not None or found.kind == "quickstart":
        parts += _law_parts(found, law, points, achieved, budgets, place)
    parts.append(("Training", _training(found, budgets, place)))
    if found.kind == "quickstart":
        parts.append(("Corpus", sections.corpora(found.store)))
    parts.append(("Runs", section("runs", "Runs", sections.runs_table(found.all_runs), note(RUNS_NOTE))))
    if found.kind == "quickstart":
        parts.append(("Samples", sections.sample_texts(found.samples)))
    parts.append(("Costs", sections.costs(found, summary)))
    if found.kind != "quickstart" and any(run.events for run in found.runs):
        parts.append(("Events", sections.events(found.all_runs)))
    versions = f"areca {__version__}, Python {sys.version.split()[0]}"
    parts.append(("Provenance", sections.provenance(found, versions)))
    return _page(found, parts, drawn)


def _law_parts(
    found: Gathered, law: Law | None, points: list[Point], achieved: Point | None, budgets: Budgets, place: Any
) -> list[tuple[str, str]]:
    if law is None:
        return [("Law", section("law", "Fitted law", absent("There is no fitted law yet (law.json).")))]
    valleys = place(
        "plot-valleys", "Loss against model size at each budget", plots.valleys(law, points, budgets),
        "No budget has a fitted valley.",
        VALLEYS_NOTE,
    )  # fmt: skip
    optima = place(
        "plot-optima", "Best size and tokens against budget", plots.optima(law, points, found.plan),
        "Fewer than two budgets have an optimum inside their sizes.",
        OPTIMA_NOTE, 360,
    )  # fmt: skip
    compute = place(
        "plot-law", "Loss against compute", plots.loss_against_compute(law, points, found.plan, achieved, budgets),
        "There are no finished runs to draw.", LAW_NOTE, 480,
    )  # fmt: skip
    residuals = place(
        "plot-residuals", "Distance of the runs from the law", plots.residuals(law, points, achieved, budgets),
        "The law has no complete set of parameters, so there are no residuals.",
        RESIDUALS_NOTE, 340,
    )  # fmt: skip
    return [
        ("Law", section("law", "Fitted law", compute, sections.law_table(law))),
        ("Valleys", section("valleys", "IsoFLOP valleys", valleys, "<h3>Best size by budget</h3>", optima)),
        ("Residuals", section("residuals", "Residuals", residuals)),
    ]


def _training(found: Gathered, budgets: Budgets, place: Any) -> str:
    loss = place(
        "plot-training", "Training loss against tokens", curves.training(found.runs, found.verify, budgets),
        "No run has metrics yet.",
        TRAINING_NOTE, 460,
    )  # fmt: skip
    watched = [found.verify] if found.verify else found.runs[:6]
    title = (
        "of the verifying run" if found.verify else "of the runs" if len(found.runs) <= 6 else "of the first six runs"
    )
    inner = place(
        "plot-internals", f"Learning rate, batch, norms and MFU {title}", curves.internals(watched),
        "There are no metrics to draw.", "", 900,
    )  # fmt: skip
    told = "".join(f"<li>{words}</li>" for words in spikes.sentences(found.all_runs))
    told = f'<h3>Spikes and rewinds</h3><ul class="spikes">{told}</ul>' if told else ""
    return section(
        "training", "Training curves", loss, told, f"<h3>Learning rate, batch, norms and MFU {title}</h3>", inner
    )


def _page(found: Gathered, parts: list[tuple[str, str]], drawn: dict[str, Figure]) -> str:
    data = json.dumps(drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    anchors = [(name, html.split('id="', 1)[1].split('"', 1)[0]) for name, html in parts]
    missing = ""
    if found.missing:
        missing = f'<ul class="missing">{"".join(f"<li>{text(m)}</li>" for m in found.missing)}</ul>'
    return Template(_asset("page.html")).substitute(
        title=text(TITLES[found.kind]),
        version=text(__version__),
        style=_asset("report.css"),
        contents="".join(f'<a href="#{anchor}">{name}</a>' for name, anchor in anchors),
        missing=missing,
        body="".join(html for _, html in parts),
        figures=data.replace("<", "\\u003c"),  # so that no text in it can end the script element
        plotly=_asset("plotly-basic.min.js"),
        script=_asset("report.js"),
    )


def _asset(name: str) -> str:
    return resources.files("areca.report").joinpath("assets", name).read_text(encoding="utf-8")
