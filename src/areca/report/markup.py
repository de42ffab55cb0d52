"""Small pieces of HTML: numbers as people write them, escaped text, tables that sort and scroll inside their box."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """What a table shows (HTML), and the value it sorts by."""

    shown: str
    value: float | str | None = None


def text(value: object) -> str:
    """Any value as text that HTML (and plotly's labels) show as it is, tags included."""
    return html.escape(str(value), quote=True)


def si(value: float | None, digits: int = 3) -> str:
    """1234567 -> "1.23M": counts of parameters and tokens."""
    if value is None:
        return NONE
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if float(f"{abs(value):.{digits - 1}e}") >= size:
            return f"{_significant(value / size, digits)}{suffix}"
    return _significant(value, digits)


def power(value: float | None, digits: int = 2) -> str:
    """2.5e12 -> "2.5×10<sup>12</sup>": FLOPs."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}×10<sup>{int(exponent)}</sup>".replace("-", "−")


def short(words: str) -> str:
    """Without the zeros that only claim precision, for axes and legends: "20.0k" -> "20k", "1.0×10" -> "10"."""
    words = re.sub(r"(\.\d*?)0+(?!\d)", lambda m: m.group(1).rstrip("."), words, count=1)
    return re.sub(r"^1×10", "10", words)


def fixed(value: float | None, decimals: int = 3) -> str:
    """A number with so many decimals, and a real minus sign."""
    return NONE if value is None else f"{value:.{decimals}f}".replace("-", "−")


def significant(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits; far from 1 as a power of ten."""
    if value is None:
        return NONE
    if value and not 1e-3 <= abs(value) < 1e5:
        return power(value, digits)
    return _significant(value, digits).replace("-", "−")


def plain(value: float) -> str:
    """A setting or a count as it was meant: 64 -> "64", 1e-3 -> "0.001", 47090 -> "4.709×10<sup>4</sup>"."""
    if float(value).is_integer() and abs(value) < 1e9:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−") if 1e-4 <= abs(value) < 1e4 else power(value, 4)


def percent(value: float | None, decimals: int = 1, sign: bool = False) -> str:
    """0.0123 -> "1.2%"."""
    return NONE if value is None else f"{100 * value:{'+' if sign else ''}.{decimals}f}%".replace("-", "−")


def duration(seconds: float | None, at_least: bool = False) -> str:
    """75 -> "1 min 15 s", or "at least 1 min 15 s" where part of the time is not known."""
    if seconds is None:
        return NONE
    if at_least:
        return f"at least {duration(seconds)}"
    if seconds < 59.5:
        return f"{_significant(seconds, 2)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def interval(value: tuple[float | None, float | None] | None, digits: int = 4) -> str:
    """ "[3.301, 3.452]"; an end that is None is infinite: "[3.301, ∞)"."""
    if value is None:
        return NONE
    low, high = value
    left = "(−∞" if low is None else f"[{significant(low, digits)}"
    return f"{left}, ∞)" if high is None else f"{left}, {significant(high, digits)}]"


def count(number: int, noun: str, plural: str = "") -> str:
    """ "1 run", "2 runs"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell | str]], label: str, sortable: bool = False) -> str:
    """A table inside a box of its own that scrolls. The first column holds names, the others numbers.

    Headers and cells are HTML already; use `text` for what users wrote.
    """
    mark = ' class="sortable"' if sortable and len(rows) > 1 else ""
    head = "".join(f'<th scope="col">{h}</th>' for h in headers)
    body = "".join(f"<tr>{''.join(_cell(c, i) for i, c in enumerate(row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}"><table{mark}>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def section(anchor: str, title: str, *parts: str) -> str:
    """One section of the page; empty parts are left out."""
    return f'<section id="{anchor}"><h2>{title}</h2>{"".join(p for p in parts if p)}</section>'


def note(words: str) -> str:
    """A paragraph that explains a figure."""
    return f'<p class="note">{words}</p>'


def absent(words: str) -> str:
    """A paragraph that says what is missing."""
    return f'<p class="absent">{text(words)}</p>'


def plot(anchor: str, label: str, height: int = 400) -> str:
    """The place of a figure; the script draws the figure of that name into it."""
    return f'<div class="plot" id="{anchor}" role="img" aria-label="{text(label)}" style="height:{height}px"></div>'


def grid(*parts: str) -> str:
    """Figures side by side where there is room, one under the other where there is not."""
    return f'<div class="grid">{"".join(f"<div>{p}</div>" for p in parts if p)}</div>'


def bar(share: float, words: str = "") -> str:
    """A bar of at most 160 pixels, and words beside it."""
    return f'<div class="share"><i style="width:{160 * share:.0f}px"></i><span>{words}</span></div>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of names and values."""
    return f'<dl class="facts">{"".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in pairs)}</dl>'


def _cell(cell: Cell | str, column: int) -> str:
    tag = 'th scope="row"' if column == 0 else "td"
    close = "th" if column == 0 else "td"
    if isinstance(cell, str):
        return f"<{tag}>{cell}</{close}>"
    key = "" if cell.value is None else f' data-value="{text(cell.value)}"'
    return f"<{tag}{key}>{cell.shown}</{close}>"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # after rounding: 999.9 with three digits is 1000
    decimals = max(0, digits - 1 - exponent)
    return f"{value:.{decimals}f}"
