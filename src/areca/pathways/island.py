"""Islands: sets of devices that one SPMD program spans. Here those of this process, the default.

A mesh (data, model) lies over the island's devices. Values are lists of jax arrays, which exist before they are
computed: a program is enqueued on arrays whose own programs still run. An island of another process has the same
methods (`areca.pathways.elsewhere.remote`).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from areca.errors import ConfigError, IslandError
from areca.pathways.program import place


class Island:
    """A subset of this process's devices.

    `name` is what messages and traces call it; `mesh` has the axes data and model.
    """

    remote = False
    error: IslandError | None = None  # islands of this process are not lost

    def __init__(self, name: str, devices: Sequence[Any], shape: tuple[int, int] | None = None) -> None:
        data, model = shape or (len(devices), 1)
        if not devices or data * model != len(devices):
            raise ConfigError(
                f"island {name} has {len(devices)} devices and a mesh of {data} x {model} needs {data * model}."
            )
        self.name, self.devices = name, tuple(devices)
        self.mesh = jax.sharding.Mesh(np.asarray(devices, dtype=object).reshape(data, model), ("data", "model"))

    def prepare(self, program: Any) -> Any:
        """What runs a program here."""
        return program.compiled(self)

    def put(self, leaves: Sequence[Any], specs: Sequence[Any], given: bool = False) -> list[Any]:
        """Arrays of the host or of another island, placed here. Those that are `given` may be the memory itself: a
        program that takes it would else take a jax.Array from whoever still has it."""
        shares = given or not any(isinstance(a, jax.Array) for a in leaves)
        lies = [place(self.mesh, s) for s in specs]
        return jax.device_put(list(leaves), lies, may_alias=None if shares else False)

    def copy(self, leaves: Sequence[Any], specs: Sequence[Any]) -> list[Any]:
        """What `put` gives of another island's arrays. To a single device JAX has a path that takes half the time."""
        return (
            jax.device_put(list(leaves), self.devices[0]) if len(self.devices) == 1 else self.put(leaves, specs, True)
        )

    def __repr__(self) -> str:
        return f"Island({self.name})"


def split_devices(islands: int, shape: tuple[int, int] = (1, 1), devices: Sequence[Any] | None = None) -> list[Island]:
    """`islands` islands of a mesh of `shape` each, of the devices in their order. ConfigError when they are too few."""
    if islands < 1:
        raise ConfigError(f"--islands is {islands}; it must be at least 1.")
    have, each = list(jax.devices() if devices is None else devices), shape[0] * shape[1]
    if islands * each > len(have):
        raise ConfigError(
            f"{islands} islands of {shape[0]} x {shape[1]} devices need {islands * each} and there are {len(have)}; "
            "ask for fewer islands or a smaller mesh."
        )
    return [Island(f"island {i}", have[i * each : (i + 1) * each], shape) for i in range(islands)]
