"""TensorBoard: event files in RUN/tensorboard, by tensorboard's own writer.

What is taken again is purged as TensorBoard does for a trainer that started again: an event SessionLog.START has its
readers drop what they hold of its step and later.
"""

from collections.abc import Mapping
from typing import Any

from areca.track.trackers import Place


class TensorBoard:
    """`areca.track.trackers.Tracker`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def begin(self, name: str, config: Mapping[str, Any]) -> None:
        """Opens another event file; what a killed process wrote after the last step that it recorded is purged."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import summary_v2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        directory = self._place.run_dir / "tensorboard"
        self._writer = EventFileWriter(str(directory))
        if self._place.memory.setdefault("begun", False):
            self._purge(self._place.sent)
        else:
            plain = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in config.items()}
            self._writer.add_event(Event(summary=summary_v2.hparams_pb(plain)))
        self._place.memory["begun"] = True

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(self._event(step=step, summary=self._summary(value=values)))
        self._writer.flush()

    def rewind(self, step: int) -> int:
        self._purge(step)
        return step

    def end(self) -> None:
        self._writer.close()

    def _purge(self, after: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._writer.add_event(self._event(step=after + 1, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()
