"""TensorBoard: event files in RUN/tensorboard, by tensorboard's own writer.

What is taken again is purged as TensorBoard does for a trainer that started again: an event SessionLog.START has its
readers drop what they hold of its step and later.
"""

import importlib
import time
from collections.abc import Mapping
from typing import Any

from areca.track.trackers import Place


class TensorBoard:
    """`areca.track.trackers.Tracker`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def begin(self, name: str, config: Mapping[str, Any]) -> None:
        """Opens another event file; what a killed process wrote after the last step that it recorded is purged."""
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        self._event, self._session, self._summary = events.Event, events.SessionLog, summaries.Summary
        directory = self._place.run_dir / "tensorboard"
        self._writer = EventFileWriter(str(directory))
        self._purge(self._place.sent)  # also at the very start: the first mark of a run purges nothing in TensorBoard
        if not self._place.memory.setdefault("begun", False):
            plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in config.items()}
            self._writer.add_event(self._event(wall_time=time.time(), summary=summary_v2.hparams_pb(plain)))
        self._place.memory["begun"] = True

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def rewind(self, step: int) -> int:
        self._purge(step)
        return step

    def end(self) -> None:
        self._writer.close()

    def _purge(self, after: int) -> None:
        started = self._session(status=self._session.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=after + 1, session_log=started))
        self._writer.flush()
