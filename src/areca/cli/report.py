"""`areca report`: one HTML page from a law, a plan, run directories, or all of them."""

from pathlib import Path
from typing import Any

from areca.cli.options import call, print_json
from areca.cli.units import counted


def report(paths: list[Path], /, *, out: Path = Path("report"), figures: bool = False, json: bool = False) -> int:
    """One HTML page that opens offline, from what `areca fit`, `plan` and `design` wrote, or from run directories.

    A law.json carries its observations, so a table's law is reported without run directories. Runs that are named
    beside a law and that it was not fitted to are drawn against it.

    Example: areca report law.json plan.json --out report --figures

    Args:
        paths: Any of a law.json, a plan.json, a design.json, the directory of a quickstart or of a ladder, and run
            directories.
        out: Where report.html and report.json go; made if it does not exist.
        figures: Also write every figure as SVG and PNG for a paper, 3.4 or 7 inches wide.
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
    for sentence in [*summary["missing"], *summary["notes"]]:
        print(sentence)
    predicted, achieved = summary.get("predicted_loss"), summary.get("achieved_loss")
    if predicted is not None and achieved is not None:
        held = {True: "inside", False: "outside", None: "without"}[summary["covered"]]
        print(f"predicted {predicted:.4f}, achieved {achieved:.4f} nats per token: {held} the 90% interval")
    drawn = {"plan": "a plan", "design": "a design of further runs"}
    number = len(summary["runs"])
    what = [counted(number, "run")] if number or summary["kind"] not in ("law", "plan") else []
    what += ["a law"] if summary["law"] else []
    what += [words for name, words in drawn.items() if name in summary["holds"]]
    print(f"{', '.join(what)}; open {out / 'report.html'}")


def run(argv: list[str]) -> int:
    """Entry of the verb."""
    return call(report, argv, "areca report")
