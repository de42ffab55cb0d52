"""Where a controller's islands come from, and how one that was lost is had again."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from areca.errors import ArecaError, ConfigError
from areca.pathways.elsewhere.processes import Setting, Starting, acquaint, start
from areca.pathways.island import split_devices

Kind = Literal["devices", "processes", "ray"]
KINDS: tuple[Kind, ...] = ("devices", "processes", "ray")
TRIES = 3  # to start a lost island again


def kind_of(word: str) -> Kind:
    """The kind that `--islands-on` names. ConfigError for another word."""
    known: dict[str, Kind] = {kind: kind for kind in KINDS}
    if word not in known:
        raise ConfigError(f"--islands-on is {word!r}; choose one of {', '.join(KINDS)}.")
    return known[word]


class Fleet:
    """Islands of one kind: "devices" of this process, "processes" of this machine, or of a "ray" cluster."""

    def __init__(self, kind: Kind, count: int, setting: Setting) -> None:
        self.kind, self.setting = kind, setting
        if kind == "devices":
            self.islands: list[Any] = list(split_devices(count, setting.shape))
        elif kind == "ray":
            from areca.pathways.elsewhere import rays

            self.islands = rays.start(count, setting)
        else:
            self.islands = start(count, setting)
        self.names = [i.name for i in self.islands]

    def again(self, lost: Any, prepare: Callable[[Any], None]) -> "Returning":
        """Begins to start a lost island anew; `prepare` compiles what it needs."""
        return Returning(self, lost, prepare)

    def admit(self, controller: Any, islands: Sequence[Any], new: Any) -> None:
        """Has the controller take a new island in, and these and it know each other."""
        controller.join(new)
        acquaint(islands, [new])

    def begin(self, name: str) -> Any:
        """Starts a new island of a name: `island()` of what it gives waits until it is up, `kill()` ends it."""
        number = self.names.index(name)
        if self.kind == "ray":
            from areca.pathways.elsewhere import rays

            return rays.Starting(name, self.setting, number)
        return Starting(name, self.setting, number)

    def close(self) -> None:
        """Ends the processes of the islands."""
        for island in self.islands:
            if island.remote:
                island.close()


class Returning:
    """A thread that starts an island again. `island` is there once it can join; `failed` says why it can't."""

    def __init__(self, fleet: Fleet, lost: Any, prepare: Callable[[Any], None]) -> None:
        self.name, self.island, self.failed = lost.name, None, ""
        self._fleet, self._prepare, self._dropped = fleet, prepare, False
        self._coming: Any = None  # what `begin` gave
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"areca-again-{lost.name}", daemon=True)
        self._thread.start()

    def drop(self) -> None:
        """It is not wanted any more: whatever of it is coming up is ended, at once."""
        with self._lock:
            self._dropped = True
            coming = self._coming
        if coming is not None:
            coming.kill()
        self._thread.join(10)

    def _run(self) -> None:
        why = ""
        for _ in range(TRIES):
            try:
                with self._lock:
                    if self._dropped:
                        return
                    self._coming = self._fleet.begin(self.name)
                island = self._coming.island()
                try:
                    self._prepare(island)
                except ArecaError:
                    island.close()
                    raise
                self.island = island
                return
            except ArecaError as error:
                why = str(error)
        self.failed = why
