"""The page's figures as SVG and PNG for papers, drawn by matplotlib from the same plotly JSON that the page draws.

3.4 inches wide (one column), or 7 (both) where a legend or a second panel needs it; no titles; text in SVG stays text.
What is understood is what `figures` makes: lines, markers, error bars, bands, logarithmic axes, panels one above the
other.
"""

import io
import re
from functools import cache
from html import unescape
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from areca.report import markup
from areca.report.figures import Figure

SINGLE, DOUBLE = 3.4, 7.0  # inches
POINTS = 0.56  # matplotlib's points for a pixel of the page
LONG_LEGEND = 5  # entries; more want both columns
SHAPES = {
    "circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "cross": "P", "pentagon": "p", "star": "*",
    "x": "x", "triangle-left": "<",
}  # fmt: skip
NAMES = re.compile(  # of figures
    r"training|internals|law|fit|observed|valleys|optima|residuals-\w+|quantiles|held-out|left-out|choices-\w+|"
    r"form-\d+(-residuals)?|plan|design|overview"
)
MARKS = {".svg": b"<dc:title>areca</dc:title>", ".png": b"Software\0areca"}
DASHES = {"solid": "-", "dash": "--", "dot": ":"}
STYLE: dict[Any, Any] = {
    "axes.edgecolor": "#5c6570", "axes.labelcolor": "#1b1f24", "axes.spines.right": False, "axes.spines.top": False,
    "axes.linewidth": 0.6, "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e8ebef", "grid.linewidth": 0.5,
    "font.size": 7.5, "axes.labelsize": 7.5, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 6.5,
    "legend.frameon": False, "xtick.color": "#5c6570", "ytick.color": "#5c6570", "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4, "svg.hashsalt": "areca",
    "svg.fonttype": "none", "pdf.fonttype": 42, "mathtext.default": "regular", "font.family": "sans-serif",
}  # fmt: skip


def pictures(drawn: dict[str, Figure]) -> dict[str, bytes]:
    """File name -> content: each figure as `law.svg` and `law.png`, and valleys beside law as `overview`."""
    found: dict[str, bytes] = {}
    with mpl.rc_context(STYLE):
        for name, figure in drawn.items():
            found |= _saved(_picture(figure), name.removeprefix("plot-"))
        pair = [drawn[name] for name in ("plot-valleys", "plot-law") if name in drawn]
        if len(pair) == 2:
            both = Picture(figsize=(DOUBLE, 3.1), layout="constrained")
            for ax, figure in zip(both.subplots(1, 2), pair, strict=True):
                _paint(ax, figure, figure["data"], "xaxis", "yaxis", SINGLE)
            found |= _saved(both, "overview")
    return found


def earlier(directory: Path) -> set[str]:
    """Names of the figures in `directory` that are ours: by their names, and by the mark that `_saved` leaves."""
    found = set()
    for path in directory.iterdir():
        mark = MARKS.get(path.suffix)
        if mark and NAMES.fullmatch(path.stem) and path.is_file() and mark in path.read_bytes()[:4096]:
            found.add(path.name)
    return found


def _saved(picture: Picture, stem: str) -> dict[str, bytes]:
    """As SVG and PNG, the same bytes for the same data."""
    found = {}
    for suffix, metadata in ((".svg", {"Date": None, "Creator": "areca"}), (".png", {"Software": "areca"})):
        content = io.BytesIO()
        picture.savefig(content, format=suffix[1:], dpi=300, metadata=metadata)
        found[stem + suffix] = content.getvalue()
    return found


def _picture(figure: Figure) -> Picture:
    layout, data = figure["layout"], figure["data"]
    panels = sorted((k for k in layout if k.startswith("yaxis")), key=lambda k: int(k[5:] or 1))
    entries = _named(figure, data)
    width = DOUBLE if len(entries) > LONG_LEGEND else SINGLE
    categories = layout["yaxis"].get("tickvals") if layout["yaxis"].get("type") != "log" else None
    height = 0.16 * len(categories) + 0.7 if categories else 2.2 if width == SINGLE else 3.2
    if entries and not categories:
        height += 0.13 * -(-len(entries) // _columns([words for _, words in entries], width))
    if len(panels) > 1:
        picture = Picture(figsize=(width, 1.05 * len(panels) + 0.6), layout="constrained")
        for i, (ax, key) in enumerate(zip(picture.subplots(len(panels), sharex=True), panels, strict=True)):
            of = [t for t in data if t.get("yaxis", "y").replace("y", "yaxis") == key]
            _paint(ax, figure, of, "xaxis", key, width, labelled=i == len(panels) - 1)
        return picture
    picture = Picture(figsize=(width, height), layout="constrained")
    _paint(picture.subplots(), figure, data, "xaxis", "yaxis", width)
    return picture


def _paint(ax: Axes, figure: Figure, data: list[Figure], x: str, y: str, width: float, labelled: bool = True) -> None:
    """One panel: its traces, axes and legend."""
    layout = figure["layout"]
    for key, options in (("x", layout[x]), ("y", layout[y])):  # scales first: error bars depend on them
        _axis(ax, key, options, width)
    if not labelled:
        ax.set_xlabel("")
    if layout[y].get("zeroline"):
        ax.axhline(0, color="#5c6570", lw=0.7, zorder=1)
    before: Figure | None = None
    for trace in data:  # later ones over earlier ones, as on the page
        xs, ys = _array(trace["x"]), _array(trace["y"])
        if trace.get("fill") == "tonexty" and before is not None:
            colour, alpha = _colour(trace["fillcolor"])
            ax.fill_between(xs, _array(before["y"]), ys, color=colour, alpha=alpha, lw=0)
        elif "lines" in trace["mode"]:
            colour, _ = _colour(trace["line"].get("color", "@ink"))
            options = {"lw": trace["line"].get("width", 2) * POINTS, "ls": DASHES[trace["line"].get("dash", "solid")]}
            ax.plot(xs, ys, color=colour, alpha=trace.get("opacity", 1.0), solid_capstyle="butt", **options)
        else:
            _markers(ax, trace, xs, ys)
        before = trace
    entries = _named(figure, data) if layout.get("showlegend", True) else []
    if entries:
        columns = _columns([words for _, words in entries], width)
        handles, words = [h for h, _ in entries], [_mathtext(w) for _, w in entries]
        more: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.01), "borderaxespad": 0.0}
        ax.legend(handles, words, ncols=columns, columnspacing=1.0, handletextpad=0.5, handlelength=1.6, **more)


def _markers(ax: Axes, trace: Figure, xs: np.ndarray, ys: np.ndarray) -> None:
    marker = trace["marker"]
    for direction in ("x", "y"):
        bars = trace.get(f"error_{direction}")
        if bars:
            spread = np.stack([_array(bars["arrayminus"]), _array(bars["array"])])
            colour, _ = _colour(bars["color"])
            along, across = (spread, None) if direction == "x" else (None, spread)
            style: dict[str, Any] = {"fmt": "none", "zorder": 2, "elinewidth": 0.9, "capsize": 1.8}
            ax.errorbar(xs, ys, xerr=along, yerr=across, ecolor=colour, **style)
    colours, symbols = marker["color"], marker.get("symbol", "circle")
    colours = colours if isinstance(colours, list) else [colours] * len(xs)
    symbols = symbols if isinstance(symbols, list) else [symbols] * len(xs)
    for look in dict.fromkeys(zip(colours, symbols, strict=True)):
        chosen = [i for i, seen in enumerate(zip(colours, symbols, strict=True)) if seen == look]
        ax.plot(xs[chosen], ys[chosen], **_look(marker, *look), ls="none")


def _look(marker: Figure, colour: str, symbol: str) -> dict[str, Any]:
    """matplotlib's words for a marker."""
    face, edge = _colour(colour)[0], marker.get("line")
    ring = _colour(edge["color"])[0] if edge else face
    width = edge.get("width", 1) * POINTS if edge else (1.1 if symbol == "x" else 0)
    size = marker.get("size", 8) * POINTS * (1.25 if symbol == "star" else 1.0)
    shape = {"marker": SHAPES.get(symbol, "o"), "alpha": marker.get("opacity"), "zorder": 2}
    return shape | {"mfc": face, "mec": ring, "mew": width, "ms": size}


def _named(figure: Figure, data: list[Figure]) -> list[tuple[Any, str]]:
    """The legend's (handle, words) in the page's order."""
    if figure["layout"].get("showlegend") is False:
        return []
    entries = []
    for i, trace in enumerate(data):
        if trace.get("showlegend") is False or not trace.get("name"):
            continue
        if trace.get("fill") == "tonexty":
            colour, alpha = _colour(trace["fillcolor"])
            handle: Any = Patch(facecolor=colour, alpha=alpha, lw=0)
        elif "lines" in trace["mode"]:
            stroke = trace["line"]
            dash, width = DASHES[stroke.get("dash", "solid")], stroke.get("width", 2) * POINTS
            colour = _colour(stroke.get("color", "@ink"))[0]
            handle = Line2D([], [], color=colour, ls=dash, lw=width, alpha=trace.get("opacity", 1.0))
        else:
            colour, symbol = (_first(trace["marker"].get(k, d)) for k, d in (("color", "@c0"), ("symbol", "circle")))
            handle = Line2D([], [], ls="none", **_look(trace["marker"], colour, symbol))
        entries.append((trace.get("legendrank", 1000), i, handle, trace["name"]))
    return [(handle, words) for _, _, handle, words in sorted(entries, key=lambda e: e[:2])]


def _columns(words: list[str], width: float) -> int:
    """How many entries of a legend stand side by side."""
    longest = max(len(re.sub(r"<[^>]+>", "", w)) for w in words)
    return max(1, min(len(words), int((width - 0.4) * 72 / ((longest + 5) * 6.5 * 0.52))))


def _axis(ax: Axes, key: str, options: Figure, width: float) -> None:
    axis = ax.xaxis if key == "x" else ax.yaxis
    axis.set_label_text(_mathtext(options["title"]["text"]))
    if options.get("type") == "log":
        low, high = (10.0**v for v in options["range"])
        (ax.set_xscale if key == "x" else ax.set_yscale)("log")
        (ax.set_xlim if key == "x" else ax.set_ylim)(low, high)
        axis.set_minor_locator(FixedLocator(options.get("minor", {}).get("tickvals", [])))
        axis.set_minor_formatter("")
    elif options.get("range"):
        (ax.set_xlim if key == "x" else ax.set_ylim)(*options["range"])
    if options.get("tickformat"):  # counts, as 200k
        axis.set_major_formatter(FuncFormatter(lambda value, _: markup.short(markup.si(value))))
    if options.get("tickvals"):
        words = list(options["ticktext"])
        if key == "x":
            words = _thinned(options["tickvals"], words, width)
        axis.set_major_locator(FixedLocator(options["tickvals"]))
        axis.set_ticklabels([_mathtext(w) for w in words])
        if options.get("type") != "log":
            axis.set_minor_locator(NullLocator())


def _thinned(ticks: list[float], words: list[str], width: float) -> list[str]:
    """Labels that fit side by side: all, or whole decades, or every second."""
    length = sum(len(re.sub(r"<[^>]+>", "", w)) + 3 for w in words)
    if length <= 13 * width:
        return words
    decades = [abs(np.log10(t) % 1) < 1e-9 for t in ticks]
    keep = decades if sum(decades) > 1 else [i % 2 == 0 for i in range(len(ticks))]
    return [w if k else "" for w, k in zip(words, keep, strict=True)]


def _colour(value: str) -> tuple[Any, float]:
    """(colour, opacity) of "@name", "#rrggbb" or "rgba(r, g, b, a)"."""
    value = _palette().get(value[1:], "#1b1f24") if value.startswith("@") else value
    if value.startswith("rgba"):
        red, green, blue, alpha = (float(v) for v in re.findall(r"[\d.]+", value))
        return (red / 255, green / 255, blue / 255), alpha
    return value, 1.0


@cache
def _palette() -> dict[str, str]:
    """The names of report.css on light paper, so that page and paper have the same colours."""
    css = resources.files("areca.report").joinpath("assets/report.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--(\w+): ([^;]+);", css.split("}", 1)[0]))


def _mathtext(words: str) -> str:
    """A label of the page as matplotlib writes it: <sup> and <sub> as mathtext, the rest as it stands."""
    words = words.replace("$", r"\$")
    words = re.sub(r"<sup>(.*?)</sup>", lambda m: f"$^{{{m[1].replace('−', '-')}}}$", words)
    words = re.sub(r"<sub>(.*?)</sub>", lambda m: f"$_{{{m[1]}}}$", words)
    return unescape(re.sub(r"<br>", " ", words))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value if not isinstance(value, list) else "circle"


def _array(values: Any) -> np.ndarray:
    return np.asarray([np.nan if v is None else v for v in values], dtype=np.float64)
