"""The report in a real browser, at the widths of a desktop and a phone, in light and dark."""

import json
from pathlib import Path

import numpy as np
import pytest
from full_law import design, plan, with_checks, write_table
from synthetic_quickstart import write_quickstart, write_run

from areca.laws import fit_laws, load
from areca.report import build_report

pytestmark = pytest.mark.browser

RESIDUALS = [f"plot-residuals-{of}" for of in ("n", "d", "c", "fitted")] + ["plot-quantiles"]
LAW = ["plot-law", "plot-fit", "plot-observed", "plot-valleys", "plot-optima", *RESIDUALS]
PLOTS = {
    "quickstart": [*LAW, "plot-plan", "plot-training", "plot-internals"],
    "runs": ["plot-training", "plot-internals"],
    "begun": [],
    "law": [
        *LAW, "plot-held-out", "plot-left-out", "plot-choices-exponent", "plot-choices-size", "plot-choices-loss",
        "plot-form-0", "plot-form-0-residuals", "plot-form-1", "plot-form-1-residuals", "plot-plan", "plot-design",
    ],
}  # fmt: skip
PLOTS["missed"] = PLOTS["quickstart"]
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}

# Of each figure: what was drawn, against what its data asks for.
DRAWN = """
return [...document.querySelectorAll(".plot")].map((plot) => {
  const box = plot.getBoundingClientRect();
  const titles = [...plot.querySelectorAll(".xtitle, .ytitle, .x2title, .y2title")];
  return {
    id: plot.id,
    traces: plot.querySelectorAll(".scatterlayer .trace").length,
    wanted: plot.data.length,
    marks: plot.querySelectorAll(".scatterlayer path").length,
    inside: titles.every((t) => {
      const r = t.getBoundingClientRect();
      return r.left >= box.left - 1 && r.right <= box.right + 1 && r.bottom <= box.bottom + 1;
    }),
    titles: titles.length,
    colour: plot.layout.font.color,
    width: box.width,
    overlaps: (() => {
      const labels = [...plot.querySelectorAll(".xtick text")].filter((t) => t.textContent.trim());
      const boxes = labels.map((t) => t.getBoundingClientRect()).sort((a, b) => a.left - b.left);
      return boxes.some((b, i) => i > 0 && b.left < boxes[i - 1].right - 1 && Math.abs(b.top - boxes[i - 1].top) < 4);
    })(),
    labels: [...plot.querySelectorAll(".xtick text")].filter((t) => t.textContent.trim()).length,
    plotted: plot.querySelector(".plot .cartesianlayer, .cartesianlayer .plot").getBoundingClientRect().width,
  };
});
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, Path]:
    """A finished quickstart, one that missed its interval, plain runs, a quickstart hardly begun, a law with all."""
    base = tmp_path_factory.mktemp("reports")
    write_quickstart(base / "quickstart")
    write_quickstart(base / "missed", seed=1, miss=True)
    for i in range(3):
        write_run(
            base / "runs" / f"a run with a long name, number {i}", 1e4, 1e5, 5.0, np.random.default_rng(i), steps=50
        )
    (base / "begun").mkdir()
    (base / "begun" / "quickstart.json").write_text("{}")
    for name in ("quickstart", "missed", "runs", "begun"):
        build_report([base / name], base / "pages" / name)
    law = with_checks(fit_laws(load([write_table(base / "runs.csv")]), samples=100).to_dict())
    for name, value in (("law", law), ("plan", plan()), ("design", design())):
        (base / f"{name}.json").write_text(json.dumps(value))
    build_report([base / f"{name}.json" for name in ("law", "plan", "design")], base / "pages" / "law")
    return {name: base / "pages" / name / "report.html" for name in PLOTS}


def open_page(chromium, path: Path, size: str, scheme: str = "light") -> None:
    """Loads the page and waits until its script says that all is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    width, height = WIDTHS[size]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    chromium.get_log("browser")
    chromium.get_log("performance")
    chromium.get(path.as_uri())
    drawn = "return document.documentElement.dataset.drawn"
    WebDriverWait(chromium, 60).until(lambda b: b.execute_script(drawn) or b.get_log("browser"))
    assert chromium.execute_script(drawn) is not None


def requests(chromium) -> list[str]:
    """Addresses the page asked for, but for the page itself and data inside it."""
    events = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    urls = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert [u for u in urls if u.startswith("file:")], "the network was not watched"
    return [u for u in urls if not u.startswith(("data:", "blob:")) and not u.endswith("/report.html")]


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("name", PLOTS)
def test_page_draws_everything_and_asks_for_nothing(chromium, reports, name, size):
    open_page(chromium, reports[name], size)
    figures = chromium.execute_script(DRAWN)
    assert [f["id"] for f in figures] == PLOTS[name]
    for figure in figures:
        assert figure["traces"] == figure["wanted"] > 0, figure
        assert figure["marks"] >= figure["traces"], figure
        assert figure["titles"] >= (1 if "choices" in figure["id"] else 2), figure
        assert figure["labels"] >= 2, figure
        assert not figure["overlaps"], figure
        assert figure["inside"], figure
        names = "choices" in figure["id"]  # these have words beside their axis
        assert figure["plotted"] > figure["width"] * (0.25 if names else 0.5), figure
    assert chromium.get_log("browser") == []
    assert requests(chromium) == []
    assert chromium.execute_script("return document.documentElement.scrollWidth") <= WIDTHS[size][0]


def test_dark_mode_recolours_the_figures(chromium, reports):
    colours = {}
    for scheme in ("light", "dark"):
        open_page(chromium, reports["quickstart"], "desktop", scheme)
        (colours[scheme],) = {figure["colour"] for figure in chromium.execute_script(DRAWN)}
    assert colours == {"light": "#1b1f24", "dark": "#e7eaee"}


def test_table_of_runs_sorts_by_number_both_ways(chromium, reports):
    open_page(chromium, reports["quickstart"], "desktop")
    header, cells = "#runs thead th:nth-child(7)", "#runs tbody td:nth-child(7)"
    script = f"""document.querySelector("{header}").click();
    return [...document.querySelectorAll("{cells}")].map((cell) => Number(cell.textContent));"""
    rising, falling = chromium.execute_script(script), chromium.execute_script(script)
    assert rising == sorted(rising)
    assert falling == rising[::-1]
    assert len(rising) == 16


def test_samples_are_text_in_the_page(chromium, reports):
    open_page(chromium, reports["quickstart"], "desktop")
    quotes = chromium.execute_script('return document.querySelectorAll("blockquote script, blockquote img").length')
    assert quotes == 0
    assert "<script>alert" in chromium.execute_script('return document.querySelector("#samples").textContent')
