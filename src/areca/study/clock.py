"""What each stage of a long piece of work took, over all the sessions it needed.

quickstart.json keeps `"stages": [{"name", "seconds"}]`. While a stage runs its entry has `"running": true` and is
written again every few seconds, so that what a killed session spent is kept too, all but the last of those seconds:
such a stage is marked `"at_least": true` from then on, and a report says so.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from areca.files import write_json

BEAT_SECONDS = 2.0  # what a kill can lose of the time it took


class StageClock:
    """Times stages into `record["stages"]` and keeps `path` up to date. For one process at a time."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path, self.record = path, record
        self._writing = threading.Lock()
        for stage in record["stages"]:
            stage["name"], stage["seconds"] = str(stage["name"]), float(stage["seconds"])
            if stage.pop("running", False):  # its session was killed after its last beat
                stage["at_least"] = True

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Adds the time spent inside to the stage `name`, also when it is left by an exception."""
        started = time.monotonic()
        stage = next((s for s in self.record["stages"] if s["name"] == name), None)
        if stage is None:
            stage = {"name": name, "seconds": 0.0}
            self.record["stages"].append(stage)
        before = stage["seconds"]

        def count(running: bool) -> None:
            with self._writing:
                stage["seconds"] = before + time.monotonic() - started
                stage.pop("running", None)
                if running:
                    stage["running"] = True
                write_json(self.path, self.record)

        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(BEAT_SECONDS):
                with contextlib.suppress(OSError):  # a full disk is for the stage itself to meet
                    count(running=True)

        count(running=True)
        beats = threading.Thread(target=beat, daemon=True)
        beats.start()
        try:
            yield
        finally:
            ended.set()
            beats.join()
            count(running=False)

    def write(self) -> None:
        """Writes the record as it is."""
        with self._writing:
            write_json(self.path, self.record)
