"""`areca report`: one HTML page from run directories."""

from pathlib import Path
from typing import Any

from areca.cli.options import call, print_json


def report(paths: list[Path], /, *, out: Path = Path("report"), figures: bool = False, json: bool = False) -> int:
    """One HTML page that opens offline, from a quickstart's directory, a ladder's or run directories.

    Example: areca report runs/small runs/large --out report --figures

    Args:
        paths: The directory of a quickstart or a ladder, or one or more run directories.
        out: Where report.html and report.json go; made if it does not exist.
        figures: Also write the figures as SVG and PNG.
        json: Print what report.json holds.
    """
    from areca.report import build_report

    summary = build_report(paths, out, figures=figures)
    if json:
        print_json(summary)
        return 0
    _say(summary, out)
    return 0


def _say(summary: dict[str, Any], out: Path) -> None:
    for sentence in summary["missing"]:
        print(sentence)
    predicted, achieved = summary.get("predicted_loss"), summary.get("achieved_loss")
    if predicted is not None and achieved is not None:
        held = {True: "inside", False: "outside", None: "without"}[summary["covered"]]
        print(f"predicted {predicted:.4f}, achieved {achieved:.4f} nats per token: {held} the 90% interval")
    number = len(summary["runs"])
    print(f"{number} run{'s' if number != 1 else ''}; open {out / 'report.html'}")


def run(argv: list[str]) -> int:
    """Entry of the verb."""
    return call(report, argv, "areca report")
