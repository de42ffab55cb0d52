"""trackio: into its local store, or to the Space or server that its own environment variables name.

It keeps every row that it is given, so steps that come to another end after a rewind begin another run of the same
group, which has the whole curve as it is now. It turns its own failures into warnings; here they are failures again.
"""

import contextlib
import importlib
import io
import uuid
import warnings
from collections.abc import Mapping
from typing import Any

from areca.track.trackers import Place, TrackerError, one_line


class Trackio:
    """`areca.track.trackers.Tracker`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._memory = place.memory
        self._memory.setdefault("id", uuid.uuid4().hex[:4])  # trackio knows runs by their names
        self._memory.setdefault("rewinds", 0)
        self._failed: list[str] = []

    def begin(self, name: str, config: Mapping[str, Any]) -> int | None:
        self._name, self._config = f"{name}-{self._memory['id']}", dict(config)
        self._library: Any = importlib.import_module("trackio")
        # Also what its threads warn of, until the end. Its own module is the one that warns.
        warnings.filterwarnings("always", category=UserWarning, module=r"trackio\.utils$")
        self._shown, warnings.showwarning = warnings.showwarning, self._hear
        return self._open()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)
        self._check()

    def rewind(self, step: int) -> int:
        self._finish()
        self._memory["rewinds"] += 1
        self._open()
        return 0

    def end(self) -> None:
        try:
            self._finish()
        finally:
            warnings.showwarning = self._shown
        self._check()

    def _finish(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._library.finish()  # not the run's own, or it would be finished once more at exit

    def _open(self) -> int | None:
        """Opens the run, or goes on in it; returns the last step that it has, where that is known."""
        back = self._memory["rewinds"]
        with contextlib.redirect_stdout(io.StringIO()):  # it prints how to open its page
            self._run = self._library.init(
                project=self._place.project,
                name=f"{self._name}-rewound-{back}" if back else self._name,
                group=self._name,
                config=self._config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self._check()
        has = getattr(self._run, "_next_step", None)  # what it has, by its own account
        return None if has is None else max(0, has - 1)

    def _check(self) -> None:
        """Raises TrackerError for what trackio has only warned of since the last call."""
        if self._failed:
            raise TrackerError(f"trackio does not take the run ({one_line(self._failed[0])}).")

    def _hear(self, message: Warning | str, category: Any, filename: str, *more: Any, **named: Any) -> None:
        if "trackio" in filename:
            self._failed.append(str(message))
        else:
            self._shown(message, category, filename, *more, **named)
