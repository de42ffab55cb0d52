"""Continuous batching: one thread that draws tokens for all texts at once; texts join and leave between its calls.

A text waits in a bounded queue until a lane is free. The lanes, and with them the programs, stay the same however many
of them are taken, so that a text's tokens do not depend on who else is there.
"""

import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from areca.data.tokenizer import Tokenizer
from areca.data.written import Written
from areca.model.lanes import Batch, Entry, Piece

STEPS = 4  # tokens of each text between two looks at who comes and goes


@dataclass(frozen=True)
class Stretch:
    """What a text has gained: characters, tokens with their log-probabilities if asked for, and how it ended if so."""

    text: str
    tokens: list[int]
    scores: list[float]
    top: list[dict[int, float]]
    finish: str | None = None  # "stop", "length" or, when the server fails or stops, "error"


@dataclass(eq=False)
class Job:
    """One text to continue. `post` is called with each stretch, from the engine's thread."""

    entry: Entry
    written: Written
    post: Callable[[Stretch], None]
    top: int = 0
    cancelled: bool = False


class QueueFull(Exception):
    """No room for as many texts more."""


class Stopped(Exception):
    """The engine takes no texts any more."""


class Engine:
    """Runs a batch in a thread of its own until `stop`."""

    def __init__(self, batch: Batch, tokenizer: Tokenizer, queue: int) -> None:
        self._batch, self._stop_token, self._most = batch, tokenizer.eod_id, queue
        self._waiting: deque[Job] = deque()
        self._joining: list[Job] = []  # their prompts are being read
        self._running: dict[int, Job] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="areca-engine", daemon=True)
        self.failure: str | None = None
        self.counts = {"texts": 0, "tokens": 0, "prompt_tokens": 0, "cancelled": 0, "refused": 0}

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues all of `jobs` or none. QueueFull where there is no room; Stopped when it no longer works."""
        with self._changed:
            if self._closing or self.failure:
                raise Stopped
            if len(self._waiting) + len(jobs) > self._most:
                self.counts["refused"] += 1
                raise QueueFull
            self._waiting += jobs
            self._changed.notify()

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Nobody reads these texts any more: they leave the queue now, their lanes at the next look."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
                if job in self._waiting:
                    self._waiting.remove(job)
                    self.counts["cancelled"] += 1
            self._changed.notify()

    def state(self) -> dict[str, Any]:
        """How many texts run and wait, and what was done so far."""
        with self._changed:
            return {"running": len(self._joining) + len(self._running), "waiting": len(self._waiting), **self.counts}

    def stop(self, seconds: float = 10.0) -> None:
        """Ends the thread; texts that still run or wait end with "error"."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while self._admit():
                self._advance()
        except Exception as error:  # /health says it, and the log where it happened
            self.failure = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            with self._changed:
                self._closing = True
                left = [*self._running.values(), *self._joining, *self._waiting]
                self._running.clear()
                self._joining = []
                self._waiting.clear()
            for job in left:
                job.post(Stretch("", [], [], [], "error"))

    def _admit(self) -> bool:
        """Frees the lanes of who has gone, fills free ones from the queue; waits for work. False: stop."""
        with self._changed:
            while True:
                for lane, job in list(self._running.items()):
                    if job.cancelled:
                        self._leave(lane)
                        self.counts["cancelled"] += 1
                if self._closing:
                    return False
                if self._running or self._waiting:
                    break
                self._changed.wait()
            joining = [self._waiting.popleft() for _ in range(min(len(self._batch.free), len(self._waiting)))]
            self._joining = joining
        if joining:
            lanes = self._batch.join([job.entry for job in joining])
            with self._changed:
                self._joining = []
                for lane, job in zip(lanes, joining, strict=True):
                    self._running[lane] = job
                    self.counts["prompt_tokens"] += len(job.entry.prompt)
        return True

    def _advance(self) -> None:
        top = max((job.top for job in self._running.values()), default=0)
        for lane, piece in self._batch.advance(STEPS, top).items():
            job = self._running[lane]
            stretch = self._stretch(job, piece)
            if stretch.finish:
                with self._changed:
                    self._leave(lane)
                    self.counts["texts"] += 1
            self.counts["tokens"] += len(stretch.tokens)
            if not job.cancelled:
                job.post(stretch)

    def _leave(self, lane: int) -> None:
        self._batch.leave(lane)
        del self._running[lane]

    def _stretch(self, job: Job, piece: Piece) -> Stretch:
        before = job.written.tokens
        text = job.written.add(piece.tokens)
        taken = job.written.tokens - before
        finish = "stop" if job.written.stopped else None
        if not finish and piece.ended:
            text += job.written.finish()
            finish = "stop" if job.written.stopped or piece.tokens[-1:] == [self._stop_token] else "length"
        return Stretch(text, piece.tokens[:taken], piece.scores[:taken], piece.top[:taken], finish)


__all__ = ["Engine", "Job", "QueueFull", "Stopped", "Stretch"]
