"""What a step waited for: the path back from its end through those ends that let the next start.

A program may start once what it reads is there, the program before it on its island has ended, and it is dispatched; a
dispatch once the one before it is done, its graph is submitted, the host functions upstream have ended, and, since
run-ahead is bounded, something on its islands has. Of these the last to end is what was waited for. Dependencies are
those of the data (`ins` and `made`) and of the order. Beside it, unions of intervals.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from areca.pathways.seeing.timeline import Event

Spans = list[tuple[float, float]]  # apart, in order


class Piece(NamedTuple):
    """A stretch of the path. `kind` is that of an event, or "idle" where nothing ran that the next waited for."""

    kind: str
    name: str
    track: str
    start: float
    end: float


def critical_path(order: "Order", last: Event, since: float) -> list[Piece]:
    """The path from `last` back to the time `since`, in the order of time; its pieces fill that time without gaps."""
    path = list[Piece]()
    event, at, seen = last, last.end, {id(last)}
    while at > since:
        start = max(min(event.start, at), since)
        if start < at:
            path.append(Piece(event.kind, event.name, event.track, start, at))
        at = start
        if at <= since:
            break
        # The last to end; of those that end together what gives data, before what is only the order.
        gates = [g for g in order.before(event) if id(g) not in seen]
        gate = max(gates, key=lambda g: min(g.end, at), default=None)
        until = since if gate is None else max(min(gate.end, at), since)
        if until < at:
            path.append(_gap(event, gate, until, at))
        if gate is None:
            break
        seen.add(id(gate))
        event, at = gate, until
    return path[::-1]


def _gap(event: Event, gate: Event | None, start: float, end: float) -> Piece:
    """The time between what let an event start and its start."""
    if event.kind == "dispatch" and gate is not None:
        return Piece("dispatch", "dispatcher", event.track, start, end)
    if gate is None and event.kind in ("prepare", "dispatch"):
        return Piece("idle", "until the client submits", event.client, start, end)
    return Piece("idle", f"before {event.name}", event.track, start, end)


class Order:
    """Who comes before whom, of all events of a timeline."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.dispatch = {e.sequence: e for e in events if e.kind == "dispatch"}
        self.makes: dict[int, list[Event]] = defaultdict(list)
        self.of_sequence: dict[int, list[Event]] = defaultdict(list)
        tracks: dict[tuple[str, str], list[Event]] = defaultdict(list)  # by track and kind
        for e in events:
            if e.kind == "prepare":
                tracks[e.track, f"{e.name} {e.step}"].append(e)
                continue
            tracks[e.track, e.kind].append(e)
            if e.kind != "dispatch":
                self.of_sequence[e.sequence].append(e)
                for value in self._made(e):
                    self.makes[value].append(e)
        self.tracks = {t: sorted(mine, key=lambda e: (e.end, e.sequence)) for t, mine in tracks.items()}
        self.ends = {t: [e.end for e in mine] for t, mine in self.tracks.items()}
        self.place = {id(e): i for mine in self.tracks.values() for i, e in enumerate(mine)}

    def _made(self, e: Event) -> tuple[int, ...]:
        told = self.dispatch.get(e.sequence) if e.sequence >= 0 else None
        return e.made or (told.made if told else ())

    def before(self, e: Event) -> Iterator[Event]:
        """Those whose ends `e` waits for: data first."""
        told = self.dispatch.get(e.sequence) if e.sequence >= 0 else None
        if e.kind == "dispatch":
            for value in e.ins:
                yield from (m for m in self.makes.get(value, ()) if m.kind == "host")
            yield from self._prepared(e)
            yield from self._previous(e)
            for mine in self.of_sequence.get(e.sequence, ()):
                for kind in ("compute", "transfer"):
                    yield from self._ended((mine.track, kind), e.start)
        elif e.kind == "host":
            for value in e.ins:
                yield from self.makes.get(value, ())
            yield from self._prepared(e)
            yield from self._ended((e.track, "host"), e.start)
        elif e.kind in ("compute", "transfer"):
            for value in e.ins or (told.ins if told else ()):
                yield from self.makes.get(value, ())
            if told is not None:
                yield told
            yield from self._previous(e) if e.kind == "compute" else self._ended((e.track, "transfer"), e.start)

    def _previous(self, e: Event) -> Iterator[Event]:
        place, mine = self.place[id(e)], self.tracks[e.track, e.kind]
        if place:
            yield mine[place - 1]

    def _ended(self, track: tuple[str, str], by: float) -> Iterator[Event]:
        """The last on a track that has ended by a time."""
        place = bisect.bisect_right(self.ends.get(track, ()), by)
        if place:
            yield self.tracks[track][place - 1]

    def _prepared(self, e: Event) -> Iterator[Event]:
        yield from self._ended((f"client {e.client}", f"{e.name} {e.step}"), e.start)


def merged(spans: Iterable[tuple[float, float]]) -> Spans:
    """The union of intervals."""
    union: Spans = []
    for start, end in sorted(spans):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union


def length(spans: Spans) -> float:
    """Seconds of a union."""
    return sum(end - start for start, end in spans)


def within(spans: Spans, others: Spans) -> Spans:
    """The intersection of two unions."""
    met, i, j = Spans(), 0, 0
    while i < len(spans) and j < len(others):
        start, end = max(spans[i][0], others[j][0]), min(spans[i][1], others[j][1])
        if start < end:
            met.append((start, end))
        if spans[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return met


def without(spans: Spans, others: Spans) -> Spans:
    """What is in one union and not in another."""
    if not spans:
        return []
    edges = [-float("inf"), *(x for span in others for x in span), float("inf")]
    return within(spans, [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b])


def overlap(spans: Spans, others: Spans) -> float:
    """Seconds that two unions have in common."""
    return length(within(spans, others))
