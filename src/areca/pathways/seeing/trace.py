"""A timeline as a file, in Chrome's trace format (Perfetto opens it), and what it says in sum; needs no jax.

In the file each island is a process with a thread for what it computed, as many for transfers as overlapped, one for
its dispatches and one for where it was idle; the controller is another, with the dispatcher, host functions and
clients. `read` takes what has an `args` with the fields of an Event and leaves the rest to people.
"""

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import write_atomic
from areca.pathways.seeing.critical import Order, Spans, critical_path, length, merged, overlap, within, without
from areca.pathways.seeing.timeline import Event

KINDS = ("prepare", "dispatch", "compute", "transfer", "host")
ON_ISLANDS = ("compute", "transfer")
NAME = "trace.json"  # in a run directory


def write(path: Path | str, events: Sequence[Event]) -> None:
    """Writes a timeline, atomically; times count from its first event."""
    zero = min((e.start for e in events), default=0.0)
    rows: list[dict[str, Any]] = []
    numbers: dict[tuple[str, str], tuple[int, int]] = {}  # (process, thread) -> their numbers

    def row(process: str, thread: str, kind: str, name: str, start: float, end: float, args: Any = None) -> None:
        if (process, thread) not in numbers:
            pids = {p: n for (p, _), (n, _) in numbers.items()}
            pid = pids.get(process, len(pids))
            tid = numbers[process, thread] = pid, len(numbers)
            for what, value in (("process_name", process), ("thread_name", thread)):
                rows.append({"ph": "M", "name": what, "pid": tid[0], "tid": tid[1], "args": {"name": value}})
        pid, tid = numbers[process, thread]
        timed = {"ts": round((start - zero) * 1e6, 3), "dur": round((end - start) * 1e6, 3)}
        rows.append(
            {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, **timed, **({"args": args} if args else {})}
        )

    islands = sorted({e.track for e in events if e.kind in ON_ISLANDS})
    dispatches = {e.sequence: e for e in events if e.kind == "dispatch"}
    for island in islands:
        mine = sorted((e for e in events if e.track == island and e.kind in ON_ISLANDS), key=lambda e: e.start)
        lanes: list[float] = []  # of transfers, when the last one on each ends
        for e in mine:
            thread = "compute"
            if e.kind == "transfer":
                lane = next((i for i, end in enumerate(lanes) if end <= e.start), len(lanes))
                lanes[lane:] = [e.end, *lanes[lane + 1 :]]
                thread = f"transfer {lane + 1}"
            row(island, thread, e.kind, e.name, e.start, e.end, asdict(e))
            if (sent := dispatches.get(e.sequence)) is not None:
                row(island, "dispatch", "dispatch", e.name, sent.start, sent.end)
        busy = merged((e.start, e.end) for e in mine)
        for (_, end), (start, _) in itertools.pairwise(busy):
            row(island, "idle", "idle", "idle", end, start)
    for e in events:
        if e.kind not in ON_ISLANDS:
            row("controller", e.track, e.kind, e.name, e.start, e.end, asdict(e))
    held = {"traceEvents": rows, "displayTimeUnit": "ms", "otherData": {"events": len(events)}}
    write_atomic(path, json.dumps(held))


def read(path: Path | str) -> list[Event]:
    """The events of a trace file, or of a run directory. DataError for what holds none or can't be read."""
    path = Path(path)
    if path.is_dir():
        path = path / NAME
        if not path.exists():
            raise DataError(
                f"{path} does not exist; record one with `areca train RUN.toml --islands 2 --trace-steps 10:12`."
            )
    try:
        held = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not JSON; a trace is what `areca train --trace-steps` writes.") from None
    rows = held.get("traceEvents") if isinstance(held, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{path} has no traceEvents; a trace is what `areca train --trace-steps` writes.")
    given = [r.get("args") for r in rows if isinstance(r, dict)]
    events = [_event(args, path) for args in given if isinstance(args, dict) and "track" in args]
    told = held.get("otherData")
    told = told.get("events", len(events)) if isinstance(told, dict) else len(events)
    if told != len(events):
        raise DataError(f"{path} holds {len(events):,} events and says that it has {told}; part of it is missing.")
    if not any(e.kind in ON_ISLANDS for e in events):
        raise DataError(f"{path} holds nothing that an island computed: it is empty, or another tool's trace.")
    return events


def _event(args: dict[str, Any], path: Path) -> Event:
    """One event; DataError names the field that it can't be."""
    made: dict[str, Any] = {}
    for field in fields(Event):
        name, value = field.name, args.get(field.name)
        if name not in args and field.default is not MISSING:
            continue
        if not _fits(name, value):
            shown = json.dumps(value)[:60] if name in args else "missing"
            raise DataError(f"{path}: the {name} of event {args.get('name')!r} is {shown}; it is no trace of ours.")
        made[name] = tuple(value) if isinstance(value, list) else value
    if made["end"] < made["start"]:
        raise DataError(f"{path}: event {made['name']!r} ends at {made['end']:g} s, before it starts; it is damaged.")
    return Event(**made)


def _fits(name: str, value: Any) -> bool:
    """Whether a value can be that of an event's field."""
    if name in ("kind", "name", "track", "client"):
        return isinstance(value, str) and (name != "kind" or value in KINDS)
    if name in ("start", "end"):
        return type(value) in (int, float) and math.isfinite(value)
    if name in ("ins", "made"):
        return isinstance(value, list) and all(type(v) is int for v in value)
    return type(value) is int


def summary(events: Sequence[Event]) -> dict[str, Any]:
    """What a timeline says: islands, dispatcher, programs and steps; seconds and fractions of the steps' time.

    A step lasts from the end of the one before it, or where that is not recorded from when its first program starts,
    to the end of its last. Without steps all that islands did is one. Where an island computes and receives at once it
    computes.
    """
    steps = _steps(events)
    spans = merged((start, end) for _, start, end, _ in steps)
    seconds = length(spans)
    islands = {}
    for island in sorted({e.track for e in events if e.kind in ON_ISLANDS}):
        of = {k: within(_spans(events, k, island), spans) for k in ON_ISLANDS}
        computes, alone = length(of["compute"]), length(without(of["transfer"], of["compute"]))
        parts = {"compute": computes, "transfer": alone, "idle": seconds - computes - alone}
        islands[island] = {k: v / seconds if seconds else 0.0 for k, v in parts.items()} | {
            "transfer_overlapped": overlap(of["transfer"], of["compute"]) / seconds if seconds else 0.0
        }
    durations: dict[tuple[str, str], list[float]] = defaultdict(list)
    for e in events:
        if e.kind in (*ON_ISLANDS, "host"):
            durations[e.kind, e.name].append(e.end - e.start)
    programs = [
        {"kind": kind, "name": name, "count": len(each), "seconds": sum(each), "median": statistics.median(each)}
        for (kind, name), each in durations.items()
    ]
    dispatches = _spans(events, "dispatch", "dispatcher")
    told, order = [], Order(events)
    for number, start, end, last in steps:
        path = critical_path(order, last, start)
        kinds: dict[str, float] = defaultdict(float)
        names: dict[tuple[str, str], float] = defaultdict(float)
        for piece in path:
            kinds[piece.kind] += piece.end - piece.start
            names[piece.kind, piece.name] += piece.end - piece.start
        waited = [{"kind": k, "name": n, "seconds": s} for (k, n), s in sorted(names.items(), key=lambda i: -i[1])]
        told.append({"step": number, "start": start, "seconds": end - start, "kinds": dict(kinds), "waited": waited})
    return {
        "seconds": seconds,
        "events": len(events),
        "islands": islands,
        "dispatcher": {
            "busy": length(within(dispatches, spans)) / seconds if seconds else 0.0,
            "dispatches": sum(e.kind == "dispatch" for e in events),
        },
        "programs": sorted(programs, key=lambda p: -p["seconds"]),
        "steps": told,
    }


def _spans(events: Iterable[Event], kind: str, track: str) -> Spans:
    return merged((e.start, e.end) for e in events if e.kind == kind and e.track == track)


def _steps(events: Sequence[Event]) -> list[tuple[int, float, float, Event]]:
    """(number, start, end, its last event) of each step, in the order of time."""
    of: dict[int, list[Event]] = defaultdict(list)
    for e in events:
        if e.kind in ON_ISLANDS:
            of[e.step].append(e)
    numbered = {n: mine for n, mine in of.items() if n >= 0} or {-1: [e for mine in of.values() for e in mine]}
    last = {n: max(mine, key=lambda e: (e.end, e.sequence)) for n, mine in numbered.items()}
    found: list[tuple[int, float, float, Event]] = []
    for n in sorted(numbered, key=lambda n: last[n].end):
        start = min(e.start for e in numbered[n])
        if found and found[-1][0] == n - 1:
            start = found[-1][2]
        found.append((n, min(start, last[n].end), last[n].end, last[n]))
    return found
