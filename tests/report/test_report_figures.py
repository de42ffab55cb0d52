"""Figures for a paper: the page's own data, text as text, the widths of one column and of two."""

import re
import struct
from xml.etree import ElementTree

import pytest

from areca.report import build_report, static
from areca.report.figures import Budgets, decade_ticks, minor_ticks
from areca.report.static import _columns, _mathtext, _thinned

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn(fitted, tmp_path_factory):
    """The directory of a whole law's figures."""
    out = tmp_path_factory.mktemp("figures")
    build_report([fitted / f"{name}.json" for name in ("law", "plan", "design")], out, figures=True)
    return out


def inches(svg):
    return [float(v.removesuffix("pt")) / 72 for v in (svg.get("width"), svg.get("height"))]


def test_every_figure_of_the_page_is_there_as_svg_and_png(drawn):
    places = set(re.findall(r'class="plot" id="plot-([^"]+)"', (drawn / "report.html").read_text()))
    assert len(places) > 15
    for suffix in ("svg", "png"):
        assert {path.stem for path in drawn.glob(f"*.{suffix}")} == places | {"overview"}


def test_widths_are_those_of_one_column_or_both_and_pngs_have_300_dots_an_inch(drawn):
    for path in drawn.glob("*.svg"):
        width, _ = inches(ElementTree.fromstring(path.read_text()))
        assert width in (pytest.approx(3.4), pytest.approx(7.0)), path
        head = path.with_suffix(".png").read_bytes()[16:24]
        assert struct.unpack(">II", head)[0] == pytest.approx(300 * width, abs=1)
    assert inches(ElementTree.fromstring((drawn / "overview.svg").read_text()))[0] == pytest.approx(7.0)
    assert inches(ElementTree.fromstring((drawn / "residuals-n.svg").read_text()))[0] == pytest.approx(3.4)


def test_text_in_svg_is_text_with_units_and_without_titles(drawn):
    svg = ElementTree.fromstring((drawn / "law.svg").read_text())
    texts = ["".join(t.itertext()).strip() for t in svg.iter(f"{SVG}text")]
    assert "held-out loss, nats per token" in texts
    assert "C: training compute, FLOPs as 6 N D" in texts
    assert not any("Fitted law" in t or "<" in t for t in texts)


def test_labels_of_the_page_become_mathtext():
    assert _mathtext("2×10<sup>−12</sup> FLOPs") == "2×10$^{-12}$ FLOPs"
    assert _mathtext("N<sub>opt</sub> &lt; $5") == r"N$_{opt}$ < \$5"


def test_labels_that_do_not_fit_are_thinned_to_decades_or_every_second():
    powers = ["10<sup>12</sup>", "2×10<sup>12</sup>", "5×10<sup>12</sup>", "10<sup>13</sup>", "2×10<sup>13</sup>"]
    ticks = [1e12, 2e12, 5e12, 1e13, 2e13]
    assert _thinned(ticks, powers, 7.0) == powers
    assert _thinned(ticks, powers, 2.5) == ["10<sup>12</sup>", "", "", "10<sup>13</sup>", ""]
    assert _columns(["a<sup>b</sup>"] * 4, 3.4) == 4
    assert _columns(["a long name of many words indeed"] * 4, 3.4) == 1


def test_ticks_are_enough_within_less_than_a_decade_and_few_over_many():
    assert decade_ticks(2.03, 3.61) == [2.25, 2.5, 2.75, 3.0, 3.25, 3.5]
    assert decade_ticks(1.0, 100.0) == [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    assert decade_ticks(1e10, 1e22) == [1e10, 1e12, 1e14, 1e16, 1e18, 1e20, 1e22]
    assert minor_ticks(1.0, 10.0, [1.0, 2.0, 5.0, 10.0]) == [3.0, 4.0, 6.0, 7.0, 8.0, 9.0]


def test_budgets_beyond_the_colours_differ_in_colour_or_shape():
    few, many = Budgets([1e12, 1.01e12, 4e12]), Budgets([10.0**i for i in range(20)])
    assert [few.style(b) for b in (1e12, 4e12, None)] == [("@c0", "circle"), ("@c1", "square"), ("@muted", "circle")]
    assert len(few.values) == 2  # what was recorded twice with a rounding between is one budget
    assert len({many.style(b) for b in many.values}) == 20
    assert sum(many.named(b) for b in many.values) == 7
    assert many.named(many.values[0])
    assert many.named(many.values[-1])


def test_figures_of_an_earlier_page_go_and_other_files_stay(fitted, tmp_path):
    build_report([fitted / "plain.json", fitted / "plan.json", fitted / "design.json"], tmp_path, figures=True)
    (tmp_path / "optima.svg").unlink()
    mine = [tmp_path / "mine.svg", tmp_path / "form-1.svg", tmp_path / "notes.txt"]
    (tmp_path / "plan.svg").rename(mine[0])  # made here, but by another name
    mine[1].write_text("<svg/>")  # by a name of ours, but not made here
    mine[2].write_text("x")
    build_report([fitted / "plain.json"], tmp_path, figures=True)
    left = {p.name for p in tmp_path.iterdir()}
    assert not left & {"plan.svg", "plan.png", "design.svg", "design.png"}
    assert {"law.svg", "law.png", "optima.svg", *(p.name for p in mine)} <= left


def test_every_name_of_a_figure_is_known_as_ours(drawn):
    assert static.earlier(drawn) == {p.name for p in drawn.iterdir() if p.suffix in (".svg", ".png")}
