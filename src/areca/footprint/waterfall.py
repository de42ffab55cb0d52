"""The levers as a figure: a bar before, what each lever takes away, a bar after. SVG or PNG."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

from areca.errors import ConfigError
from areca.files import write_atomic

PANELS = (("energy_kwh", "kWh"), ("carbon_kg", "kg CO2e, gross"), ("carbon_net_kg", "kg CO2e, net"))
BEFORE, LESS, MORE = "#5b6770", "#2a9d6f", "#c8553d"


def check_plot(path: str) -> None:
    """Raises ConfigError for a file that is neither SVG nor PNG."""
    if not path.endswith((".svg", ".png")):
        raise ConfigError(f"--plot is {path}; name an .svg or a .png file.")


def waterfall(found: dict[str, Any], path: Path | str) -> None:
    """Draws `what_if`'s steps, one panel for each of energy, gross and net that is known to the end."""
    check_plot(str(path))
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = found["steps"]
    panels = [(key, unit) for key, unit in PANELS if all(s[key] is not None for s in steps)]
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (key, unit) in zip(axes, panels, strict=True):
        _panel(ax, steps, key, unit)
    figure.suptitle(found["case"], fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:], dpi=200)
    write_atomic(path, content.getvalue())


def _panel(ax: Any, steps: list[dict[str, Any]], key: str, unit: str) -> None:
    values = [s[key] for s in steps]
    labels = [s["after"] for s in steps] + ["after"]
    ax.bar(0, values[0], color=BEFORE)
    for i, (old, new) in enumerate(pairwise(values), 1):
        ax.bar(i, abs(new - old), bottom=min(old, new), color=LESS if new < old else MORE)
        ax.plot([i - 1.4, i + 0.4], [old, old], color=BEFORE, linewidth=0.6)
        times = old / new if new else float("inf")
        ax.annotate(f"{times:.3g}x", (i, max(old, new)), ha="center", va="bottom", fontsize=8)
    last = len(values)
    ax.bar(last, values[-1], color=BEFORE)
    ax.annotate(f"{values[-1]:.3g}", (last, values[-1]), ha="center", va="bottom", fontsize=8)
    ax.annotate(f"{values[0]:.3g}", (0, values[0]), ha="center", va="bottom", fontsize=8)
    ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=8)
    ax.set_ylabel(unit)
    ax.margins(y=0.12)
    ax.spines[["top", "right"]].set_visible(False)
