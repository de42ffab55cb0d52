"""`areca trace`: what a recorded timeline says."""

from pathlib import Path
from typing import Any

from areca.cli.tables import plain_table, wide_console
from areca.cli.units import counted, duration

MOST = 12  # rows of a table; --json has all


def run(argv: list[str]) -> int:
    """Parses and runs `areca trace`."""
    from areca.cli.options import call

    return call(trace, argv, "areca trace")


def trace(run: Path, /, *, json: bool = False) -> int:
    """What islands did in recorded steps, and what the steps waited for.

    RUN is a run directory whose training was given --trace-steps, or a trace.json. Utilisation is of the steps' time:
    an island computes, receives while it computes nothing, or is idle. A step's time is that along the path back from
    its end through those ends that the next start waited for, so it adds up. Open the file in ui.perfetto.dev to see
    it.

    Example: areca trace runs/two

    Args:
        run: what to read.
        json: print everything for machines.
    """
    from areca.cli.options import print_json
    from areca.pathways.seeing.trace import read, summary

    found = summary(read(run))
    print_json(found) if json else _print(found)
    return 0


def _print(found: dict[str, Any]) -> None:
    console, steps = wide_console(), found["steps"]
    numbered = [s["step"] for s in steps if s["step"] >= 0]
    of = f"{counted(len(numbered), 'step')} ({_ranges(numbered)})" if numbered else "no steps are marked, all is one"
    console.print(
        f"{of}, {duration(found['seconds'])}, {counted(len(found['islands']), 'island')}, "
        f"{counted(found['events'], 'event')}"
    )
    table = plain_table("", "compute", "transfer", "idle", "transfer beside compute")
    for name, parts in found["islands"].items():
        table.add_row(name, *(f"{parts[k]:.1%}" for k in ("compute", "transfer", "idle", "transfer_overlapped")))
    console.print("", table, sep="\n")
    dispatcher = found["dispatcher"]
    console.print(f"dispatcher: {dispatcher['busy']:.1%} busy, {counted(dispatcher['dispatches'], 'dispatch')[:-1]}es")
    kinds = ("compute", "transfer", "host", "dispatch", "idle")
    table = plain_table("a step waited for", *kinds, "in all", "most of it")
    for step in steps[:MOST]:
        most = step["waited"][0] if step["waited"] else {"name": "", "kind": ""}
        name = "all" if step["step"] < 0 else str(step["step"])
        table.add_row(
            name, *(duration(step["kinds"].get(k, 0.0)) for k in kinds), duration(step["seconds"]),
            f"{most['name']} ({most['kind']})",
        )  # fmt: skip
    console.print("", table, sep="\n")
    _more(console, steps)
    waited: dict[tuple[str, str], float] = {}
    for row in (w for step in steps for w in step["waited"]):
        key = row["kind"], row["name"]
        waited[key] = waited.get(key, 0.0) + row["seconds"]
    table = plain_table("waited for, all steps", "kind", "seconds", "share")
    ordered = sorted(waited.items(), key=lambda item: -item[1])
    for (kind, name), seconds in ordered[:MOST]:
        table.add_row(name, kind, duration(seconds), f"{seconds / found['seconds']:.1%}")
    console.print("", table, sep="\n")
    _more(console, ordered)
    table = plain_table("ran", "kind", "times", "in all", "median")
    for p in found["programs"][:MOST]:
        table.add_row(p["name"], p["kind"], f"{p['count']:,}", duration(p["seconds"]), duration(p["median"]))
    console.print("", table, sep="\n")
    _more(console, found["programs"])


def _more(console: Any, rows: Any) -> None:
    if len(rows) > MOST:
        console.print(f"and {len(rows) - MOST} more (--json has all)")


def _ranges(numbers: list[int]) -> str:
    """10 to 12, 50."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts)
