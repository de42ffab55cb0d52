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
from areca.files import check_output, write_atomic, write_json
from areca.report import curves, mixtures, sections, spikes
from areca.report.checkpage import check_parts, other_parts
from areca.report.costs import costs
from areca.report.gather import gather
from areca.report.headline import headline
from areca.report.lawpage import law_parts
from areca.report.markup import note, section, text
from areca.report.planpage import design_part, plan_part
from areca.report.summary import summarise
from areca.report.view import View

TITLES = {
    "quickstart": "Quickstart: a scaling law put to the test",
    "ladder": "A ladder of runs",
    "runs": "Training runs",
    "law": "A scaling law and what it was held to",
    "plan": "What to run next",
}
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

    `paths` are any of law.json, plan.json, design.json, a quickstart's directory, a ladder's, run directories. With
    `figures` every figure of the page is also written as SVG and PNG (see `static`), and those that an earlier report
    left there and this one has not are removed. Raises DataError for a path that
    is none of these or holds a damaged file, before anything is written.
    """
    found = gather(paths)
    out = Path(out_dir)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a directory.")
    for name in ("report.html", "report.json"):
        check_output("--out's", out / name, paths)
    with np.errstate(all="ignore"):  # a law can be absurd; what is not finite becomes a gap
        view = View.of(found)
        summary = summarise(view)
        html = render(view, summary)
        if figures:
            from areca.report import static

            drawn = static.pictures(view.drawn)
            for name in drawn:
                check_output("--out's", out / name, paths)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / "report.html", html)
    write_json(out / "report.json", summary)
    if figures:
        for name, content in drawn.items():
            write_atomic(out / name, content)
        for name in static.earlier(out) - drawn.keys():  # of an earlier page, which would pass for this one's
            (out / name).unlink(missing_ok=True)
    return summary


def render(view: View, summary: dict[str, Any]) -> str:
    """The page as text."""
    found = view.found
    parts: list[tuple[str, str]] = []
    if found.kind == "quickstart":
        parts.append(("Prediction", headline(found, summary)))
    if found.law is not None or found.kind == "quickstart":
        parts += law_parts(view) + check_parts(view) + other_parts(view)
    parts += plan_part(view) + design_part(view)
    if found.runs or found.kind not in ("law", "plan"):
        parts.append(("Training", _training(view)))
        if found.kind == "quickstart":
            parts.append(("Corpus", sections.corpora(found.store)))
        runs = sections.runs_table(found.all_runs), note(RUNS_NOTE), mixtures.read(found.all_runs)
        parts.append(("Runs", section("runs", "Runs", *runs)))
        if found.kind == "quickstart":
            parts.append(("Samples", sections.sample_texts(found.samples)))
        parts.append(("Costs", costs(found, summary)))
        if found.kind != "quickstart" and any(run.events for run in found.runs):
            parts.append(("Events", sections.events(found.all_runs)))
    versions = f"areca {__version__}, Python {sys.version.split()[0]}"
    parts.append(("Provenance", sections.provenance(found, versions)))
    return _page(view, parts)


def _training(view: View) -> str:
    found = view.found
    loss = view.place(
        "plot-training", "Training loss against tokens", curves.training(found.runs, found.verify, view.budgets),
        "No run has metrics yet.",
        TRAINING_NOTE, 460,
    )  # fmt: skip
    watched = [found.verify] if found.verify else found.runs[:6]
    title = (
        "of the verifying run" if found.verify else "of the runs" if len(found.runs) <= 6 else "of the first six runs"
    )
    inner = view.place(
        "plot-internals", f"Learning rate, batch, norms and MFU {title}", curves.internals(watched),
        "There are no metrics to draw.", "", 900,
    )  # fmt: skip
    told = "".join(f"<li>{words}</li>" for words in spikes.sentences(found.all_runs))
    told = f'<h3>Spikes and rewinds</h3><ul class="spikes">{told}</ul>' if told else ""
    return section(
        "training", "Training curves", loss, told, f"<h3>Learning rate, batch, norms and MFU {title}</h3>", inner
    )


def _page(view: View, parts: list[tuple[str, str]]) -> str:
    found = view.found
    data = json.dumps(view.drawn, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    anchors = [(name, html.split('id="', 1)[1].split('"', 1)[0]) for name, html in parts]
    missing = ""
    if said := [*found.missing, *view.notes]:
        missing = f'<ul class="missing">{"".join(f"<li>{text(m)}</li>" for m in said)}</ul>'
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
