"""Islands as actors on a Ray cluster (`areca[ray]`): Ray places the processes, starts them and sees when one dies.

Each process of an island is one actor, spread over the nodes. It gets one message a subgraph, as any island of another
process does, and islands send each other values straight over TCP, not through Ray's object store. The cluster is the
one that RAY_ADDRESS names; without it Ray is started on this machine and ends with this process.
"""

import contextlib
import itertools
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from areca.errors import ConfigError, IslandError, install
from areca.pathways.elsewhere.processes import START, Setting, bring_up, without_devices

_incarnations = itertools.count()


def connect() -> Any:
    """Ray, connected to the cluster. ConfigError where Ray is not installed or the cluster can't be reached."""
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_AUTH_MODE", "disabled"), ("RAY_DEDUP_LOGS", "0")):
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ConfigError(
            f"islands.on is ray and Ray is not installed; {install('ray')}, or set islands.on to processes."
        ) from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        _listens(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=None)
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = (str(error).strip().splitlines() or [""])[0]
            raise ConfigError(
                f"no Ray cluster answers at RAY_ADDRESS={address or ''}: {said.rstrip('.')}; start one with "
                "`ray start --head`, or unset RAY_ADDRESS."
            ) from None
    return ray


def _listens(address: str | None) -> None:
    """ConfigError where nothing listens at the address of a cluster: Ray itself tries again for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not (colon and port.isdigit()):  # none, "auto" or "local": Ray's to say
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {why}; start one there, or unset RAY_ADDRESS."
        ) from None


def start(count: int, setting: Setting) -> list[Any]:
    """Starts `count` islands and waits until they are up. ConfigError when the cluster is too small."""
    check(count, setting)
    return bring_up([Starting(f"island {i}", setting, i) for i in range(count)])


def check(count: int, setting: Setting) -> None:
    """ConfigError when the cluster is too small for so many islands."""
    ray = connect()
    have = ray.cluster_resources()
    for name, each in _resources(ray, setting).items():
        need = count * setting.processes * each
        if need > have.get(name, 0):
            what = f"{each:g} {name}{'s' if each != 1 else ''} for each process"
            raise ConfigError(
                f"islands.count is {count}, which needs {need:g} {name}s ({what}), and the Ray cluster has "
                f"{have.get(name, 0):g}; ask for fewer islands, fewer threads or more "
                "nodes."
            )


def _resources(ray: Any, setting: Setting) -> dict[str, float]:
    """What each process asks of Ray: GPUs where the cluster has them, else its threads' cores."""
    if ray.cluster_resources().get("GPU"):
        return {"GPU": setting.devices}
    return {"CPU": setting.threads or 1}


class Starting:
    """An island whose actors are coming up; `island()` waits for them."""

    def __init__(self, name: str, setting: Setting, number: int) -> None:
        ray = connect()
        self.name, self.setting = name, setting
        self.id = f"{name}.ray{os.getpid()}.{next(_incarnations)}"
        self.devices = setting.devices
        asks = _resources(ray, setting)
        variables = {
            "JAX_NUM_CPU_DEVICES": str(self.devices),
            "XLA_FLAGS": without_devices(os.environ.get("XLA_FLAGS", "")),
        }
        variables |= {k: v for k in ("ARECA_CACHE", "JAX_PLATFORMS", "ARECA_ALLOCATOR") if (v := os.environ.get(k))}
        if not os.environ.get("RAY_ADDRESS"):
            variables["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        actor = ray.remote(
            num_cpus=asks.get("CPU", 0), num_gpus=asks.get("GPU", 0), max_restarts=0, scheduling_strategy="SPREAD",
            concurrency_groups={"events": 1}, runtime_env={"env_vars": variables},
        )(Member)  # fmt: skip
        self.actors = [actor.remote() for _ in range(setting.processes)]

    def island(self) -> Any:
        """The island, once its actors are up."""
        from areca.pathways.elsewhere.remote import RemoteIsland

        ray, s, until = connect(), self.setting, time.monotonic() + START
        try:
            places = self._get([a.place.remote() for a in self.actors], until)
            setup = s.setup(self.name, self.id, "", places[0][0] if s.processes > 1 else "")
            ups = self._get(
                [
                    actor.begin.remote(replace(setup, rank=rank, host=places[rank][1]), self.devices, s.cache)
                    for rank, actor in enumerate(self.actors)
                ],
                until,
            )
        except BaseException:
            self.kill()
            raise
        channels = [
            RayChannel(ray, actor, address, f"actor {actor._actor_id.hex()[:8]} on {host}")
            for actor, address, (_, host) in zip(self.actors, ups, places, strict=True)
        ]
        return RemoteIsland(self.name, self.id, s.shape, channels, s.deadline)

    def kill(self) -> None:
        """Ends the actors."""
        ray = connect()
        for actor in self.actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)

    def _get(self, refs: list[Any], until: float) -> list[Any]:
        ray = connect()
        try:
            return ray.get(refs, timeout=max(0.0, until - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            raise IslandError(
                f"{self.name} did not start within {START:g} s; the cluster may be full (`ray status`)."
            ) from None
        except ray.exceptions.RayError as error:
            said = [line for line in str(error).strip().splitlines() if line.strip()]
            raise IslandError(f"{self.name} did not start: {said[-1].strip() if said else error!r}") from None


class Member:
    """The actor: an agent in a process of Ray's. `events` waits until there is something to say."""

    def __init__(self) -> None:
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.agent: Any = None

    def place(self) -> tuple[str, str]:
        """Where jax.distributed could listen, and this node's address."""
        import socket

        import ray

        host = ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as s:
            return f"{host}:{s.getsockname()[1]}", host

    def begin(self, setup: Any, devices: int, cache: bool) -> tuple[str, int]:
        """Starts jax and the agent; gives where it listens for other islands."""
        from areca.pathways.elsewhere.processes import agent_of

        self.agent = agent_of(setup, devices, cache, self.said.put)
        return self.agent.links.address

    def handle(self, message: tuple[Any, ...]) -> None:
        """One message, in their order."""
        if message[0] != "close":  # the controller ends the actor: Ray cries out over one that ends itself
            self.agent.handle(message)

    def events(self) -> list[tuple[Any, ...]]:
        """What there is to say."""
        found = [self.said.get()]
        while not self.said.empty():
            found.append(self.said.get())
        return found


Member.events.__ray_concurrency_group__ = "events"  # type: ignore[attr-defined]  # what ray.method sets, without Ray


class RayChannel:
    """Messages to an actor."""

    def __init__(self, ray: Any, actor: Any, addresses: tuple[str, int], describe: str) -> None:
        self.ray, self.actor, self.addresses, self.describe = ray, actor, addresses, describe

    def send(self, message: tuple[Any, ...]) -> None:
        self.actor.handle.remote(message)

    def listen(self, heard: Callable[[tuple[Any, ...]], None], ended: Callable[[str], None]) -> None:
        def run() -> None:
            try:
                while True:
                    for message in self.ray.get(self.actor.events.remote()):
                        heard(message)
            except Exception as error:
                ended((str(error).strip().splitlines() or [""])[0])

        threading.Thread(target=run, name=f"areca-{self.describe}", daemon=True).start()

    def how(self) -> str:
        """How the actor ended, where nothing more is known."""
        return "Ray can't reach it"

    def kill(self) -> None:
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)

    def close(self) -> None:
        self.kill()


__all__: Sequence[str] = ("Member", "RayChannel", "Starting", "connect", "start")
