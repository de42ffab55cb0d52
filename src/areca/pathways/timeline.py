"""What happened when: the timeline of a controller and its islands, in Chrome's trace format (for Perfetto).

Programs of an island run one after another, so a program's computation starts when it was enqueued or when the one
before it ended, whichever is later; its end is seen by a thread that waits for it. Recording costs time: it is for
looking, not for measuring speed.
"""

import json
import queue
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """`track` is an island, "dispatcher", "host" or "client NAME"; times are seconds of one clock."""

    kind: str  # prepare, dispatch, compute, transfer, host
    name: str
    track: str
    client: str
    sequence: int
    start: float
    end: float


class Timeline:
    """Collects events; `events` is complete once the controller is closed."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._queues: dict[str, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []

    def prepared(self, graph: Any, client: str, at: float) -> None:
        """A graph was submitted, with all that the dispatch of its nodes needs."""
        self.events += [Event("prepare", node.name, f"client {client}", client, -1, at, at) for node in graph.nodes]

    def dispatched(self, step: Any, sequence: int, client: str, start: float, end: float, slots: list[Any]) -> None:
        """A step was enqueued on its islands."""
        self.events.append(Event("dispatch", step.name, "dispatcher", client, sequence, start, end))
        kind = "compute" if step.kind == "program" else "transfer"
        for part in step.parts:
            made = slots[part.outs[0][0]]
            self._queue(part.island.name).put((kind, step.name, client, sequence, end, made[0]))

    def _queue(self, island: str) -> "queue.SimpleQueue[Any]":
        if island not in self._queues:
            self._queues[island] = queue.SimpleQueue()
            thread = threading.Thread(target=self._watch, args=(island,), name=f"areca-timeline-{island}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self._queues[island]

    def host(self, node: Any, client: str, start: float, end: float) -> None:
        """A host function ran."""
        self.events.append(Event("host", node.name, "host", client, -1, start, end))

    def _watch(self, island: str) -> None:
        last = 0.0
        while (item := self._queues[island].get()) is not None:
            kind, name, client, sequence, enqueued, array = item
            try:
                if not array.is_deleted():
                    array.block_until_ready()
            except Exception:  # said to whoever reads the value
                pass
            now = time.perf_counter()
            self.events.append(Event(kind, name, island, client, sequence, max(enqueued, last), now))
            last = now

    def close(self) -> None:
        """Waits until the end of what was dispatched is recorded."""
        for q in self._queues.values():
            q.put(None)
        for thread in self._threads:
            thread.join()
        self._queues, self._threads = {}, []
        self.events.sort(key=lambda e: e.start)

    def write(self, path: Path | str) -> None:
        """Chrome's trace format."""
        tracks = {t: i for i, t in enumerate(sorted({e.track for e in self.events}))}
        rows: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": t}} for t, i in tracks.items()
        ]
        rows += [
            {"ph": "X", "cat": e.kind, "name": e.name, "pid": 0, "tid": tracks[e.track], "ts": e.start * 1e6,
             "dur": (e.end - e.start) * 1e6, "args": asdict(e)}
            for e in self.events
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))
