"""Sends a run's metrics.jsonl to one tracker, from where it was left, also while the run goes on.

What was sent is in RUN/NAME/sent.json: the last step, a digest of what training made of it, and what the adapter has to
remember. A run that was killed takes some steps again and makes the same of them, so nothing is sent twice; one that
went back from a spike, or was resumed where its bits differ, takes them to another end, and the tracker is told from
which step on (`Tracker.rewind`).
"""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areca.errors import BusyError, CheckpointError, DataError
from areca.files import read_json, take_lock, write_json
from areca.track.rows import EVENTS, METRICS, RUN, Lines, digest, evaluation, numbers, settings
from areca.track.trackers import Place, Tracker, open_tracker

STATE = "sent.json"


class Follower:
    """One run on its way to one tracker. Close it, or use it in a `with` statement.

    Raises CheckpointError where there is no run, BusyError if another process sends the run to this tracker.
    """

    def __init__(self, run_dir: Path | str, name: str, project: str = "areca", tracker: Tracker | None = None) -> None:
        self.run_dir, self.name = Path(run_dir), name
        if not (self.run_dir / RUN).exists():
            raise CheckpointError(f"{run_dir} is not a run directory (it has no {RUN}); name one of `areca train`.")
        run = read_json(self.run_dir / RUN)
        if not isinstance(run, dict):
            raise DataError(f"{self.run_dir / RUN} is not the record of a run; restore it from a copy.")
        try:
            self._lock = take_lock(self.run_dir / name)
        except BusyError:
            raise BusyError(
                f"{run_dir} is being sent to {name} by another process already; wait until it ends, or stop it."
            ) from None
        try:
            self._state = self._remembered()
            self.place = Place(self.run_dir, project, self._state["memory"], self._state["step"])
            self._tracker = open_tracker(name, self.place) if tracker is None else tracker
            self._rows, self._events = Lines(self.run_dir / METRICS), Lines(self.run_dir / EVENTS)
            self._digests = array("I")  # of the steps from the first on; 0: not seen
            self._evaluations: dict[int, dict[str, float]] = {}
            self._rewinds = 0  # events seen
            has = self._tracker.begin(self.run_dir.resolve().name, settings(run))
            if has is not None and has != self._state["step"]:
                self._state |= {"step": has, "evaluated": min(has, self._state["evaluated"]), "digest": 0}
            self._write()
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def sent(self) -> int:
        """The last step that was sent."""
        return self._state["step"]

    def poll(self) -> int:
        """Sends what is new; returns how many lines."""
        before = dict(self._state)
        count = 0
        # Metrics before events: what happened between two steps that are seen is then seen as well.
        rows, _ = self._rows.read()
        while True:
            again = self._take_events()
            for row in rows if not again else ():
                if again := not self._judge(row):
                    break
                if row["step"] > self._state["step"]:
                    self._send_evaluations(row["step"] - 1)
                    self._send(row)
                    count += 1
            if again:
                self._rows.restart()
            elif not rows:
                break
            rows, _ = self._rows.read()
        self._send_evaluations(self._state["step"])
        if self._state != before:
            self._write()
        return count

    def close(self) -> None:
        """Has the tracker take the rest, and writes what was sent. Safe to call twice."""
        if self._lock < 0:
            return
        try:
            self._tracker.end()
            self._write()
        finally:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "Follower":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
        elif self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _remembered(self) -> dict[str, Any]:
        """What was sent before; from the first step where that can't be read."""
        fresh = {"step": 0, "digest": 0, "evaluated": 0, "rewinds": 0, "memory": {}}
        try:
            return fresh | read_json(self.run_dir / self.name / STATE)
        except (DataError, TypeError):
            return fresh

    def _write(self) -> None:
        write_json(self.run_dir / self.name / STATE, self._state)

    def _take_events(self) -> bool:
        """Takes in new events; True if all has to be sent once more."""
        again = False
        for event in self._new_events():
            kind, step = event.get("event"), event.get("step")
            if kind == "evaluate" and isinstance(step, int):
                self._evaluations[step] = evaluation(event)
            back = event.get("to_step") if kind == "rewind" else step if kind == "resume" else None
            if isinstance(back, int):
                self._evaluations = {s: e for s, e in self._evaluations.items() if s <= back}
            if kind == "rewind" and isinstance(back, int):
                self._rewinds += 1
                if self._rewinds > self._state["rewinds"]:
                    self._state["rewinds"] = self._rewinds
                    again |= self._go_back(back) < back
        return again

    def _new_events(self) -> Iterator[dict[str, Any]]:
        while True:
            events, cut = self._events.read()
            if cut:
                self._rewinds = 0
            if not events:
                return
            yield from events

    def _go_back(self, step: int) -> int:
        """What was sent after `step` does not hold; returns the step after which all is to come once more."""
        del self._digests[step:]
        if self._state["step"] <= step:
            return step
        left = self._tracker.rewind(step)
        self._state |= {"step": left, "evaluated": min(left, self._state["evaluated"]), "digest": 0}
        if 0 < left <= len(self._digests):
            self._state["digest"] = self._digests[left - 1]
        return left

    def _judge(self, row: dict[str, Any]) -> bool:
        """Compares a step with what was sent of it; False if lines from before it have to come again."""
        step, made = row.get("step"), digest(row)
        if not isinstance(step, int) or step < 1:
            raise DataError(f"{self.run_dir / METRICS} has a line without a step; restore it from a copy.")
        while len(self._digests) < step:
            self._digests.append(0)
        known = self._digests[step - 1] if step < self._state["step"] else self._state["digest"]
        same = step > self._state["step"] or known in (0, made)
        if not same:
            # Where only the last step that was sent is remembered, any before it may differ too.
            back = step - 1 if self._digests[step - 1] else 0
            left = self._go_back(back)
            self._digests.extend([0] * (step - len(self._digests)))
            if left < step - 1:
                return False
        self._digests[step - 1] = made
        return True

    def _send(self, row: dict[str, Any]) -> None:
        self._tracker.log(row["step"], numbers(row))
        self._state |= {"step": row["step"], "digest": self._digests[row["step"] - 1]}

    def _send_evaluations(self, step: int) -> None:
        """The evaluations after steps up to this one, of which those were sent."""
        for at in sorted(s for s in self._evaluations if self._state["evaluated"] < s <= step):
            self._tracker.log(at, self._evaluations[at])
            self._state["evaluated"] = at
