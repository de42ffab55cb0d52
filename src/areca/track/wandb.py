"""Weights & Biases: what is sent is the run's numbers and settings, and nothing of the machine around it.

W&B drops steps that go back, so steps that come to another end after a rewind begin another run of the same group,
which has the whole curve as it is now; the one before is left as it was. Offline (WANDB_MODE=offline), each session
leaves a directory in RUN/wandb that is whole by itself: `wandb sync` sends the last.
"""

import importlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

from areca.track.trackers import Place, TrackerError, one_line


class Wandb:
    """`areca.track.trackers.Tracker`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._memory = place.memory
        self._memory.setdefault("id", uuid.uuid4().hex[:12])
        self._memory.setdefault("rewinds", 0)

    def begin(self, name: str, config: Mapping[str, Any]) -> int:
        self._name, self._config = name, dict(config)
        return self._open()

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def rewind(self, step: int) -> int:
        self._run.finish(exit_code=1)
        self._memory["rewinds"] += 1
        return self._open()

    def end(self) -> None:
        self._run.finish()

    def _open(self) -> int:
        """Opens the run, or goes on in it; returns the last step that it has."""
        wandb: Any = importlib.import_module("wandb")
        back = self._memory["rewinds"]
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        try:
            self._run = wandb.init(
                project=self._place.project,
                id=f"{self._memory['id']}-{back}" if back else self._memory["id"],
                name=f"{self._name}, rewound {back}" if back else self._name,
                group=f"{self._name}-{self._memory['id']}",
                config=self._config,
                dir=str(self._place.run_dir),
                resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    host="areca",
                    disable_git=True,
                    disable_code=True,
                    save_code=False,
                    disable_job_creation=True,
                    x_disable_meta=True,
                    x_disable_machine_info=True,
                    x_disable_stats=True,
                    x_save_requirements=False,
                ),
            )
        except wandb.Error as error:
            raise TrackerError(f"W&B does not open the run ({one_line(error)}).") from None
        self._memory["at"] = str(self._run.dir) if self._run.offline else self._run.url
        return 0 if self._run.offline else max(0, self._run.step - 1)
