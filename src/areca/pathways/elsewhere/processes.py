"""Islands as processes of this machine: started here, spoken to over a socket, ended with this process.

    islands = start(2, Setting((2, 2)))  # two processes, each with four devices in a mesh of 2 x 2
    with Controller(islands) as controller: ...

The process runs `python -m areca.pathways.elsewhere.processes`, reads what it is to be from its standard input and does
what it is told until the connection ends: it never outlives its controller. The control socket is a file, so an island
may be in another network namespace; what islands send each other goes over TCP from `hosts`.
"""

import contextlib
import itertools
import os
import pickle
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from areca.errors import ConfigError, IslandError

MOST_FLOWS = 64  # connections from an island to another
START = 120.0  # seconds that a process may take to come up
_incarnations = itertools.count()


@dataclass(frozen=True)
class Setting:
    """How the processes of all islands are started."""

    shape: tuple[int, int] = (1, 1)
    processes: int = 1  # of each island; they share its devices evenly
    threads: int = 0  # of XLA in each process; 0: this process's
    chunk_bytes: int = 4 << 20
    flows: int = 1
    window: int = 16
    deadline: float = 300.0
    cache: bool = True  # the compilation cache, shared by all of them
    logs: str = ""  # a directory for what they print; empty: a temporary one
    launch: Sequence[Sequence[str]] = ()  # for each island, what to put before the command: taskset, ip netns exec, ...
    hosts: Sequence[str] = ()  # for each island, the address other islands reach it at
    token: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def __post_init__(self) -> None:
        devices = self.shape[0] * self.shape[1]
        if self.processes < 1 or devices % self.processes:
            raise ConfigError(
                f"islands.processes is {self.processes}, and an island of {self.shape[0]} x {self.shape[1]} devices "
                f"can't be shared evenly by so many; choose a divisor of {devices}."
            )
        if not 1 <= self.flows <= MOST_FLOWS:
            raise ConfigError(f"islands.flows is {self.flows}; choose from 1 to {MOST_FLOWS}.")
        if self.chunk_bytes < 1:
            raise ConfigError(f"a chunk has {self.chunk_bytes} bytes; give at least 1.")

    @property
    def devices(self) -> int:
        """Of each process."""
        return self.shape[0] * self.shape[1] // self.processes

    def setup(self, name: str, id: str, host: str, coordinator: str = "") -> Any:
        """What the agent of an island's first process is told (`areca.pathways.elsewhere.agent.Setup`)."""
        from areca.pathways.elsewhere.agent import Setup

        return Setup(
            name, id, self.shape, 0, self.processes, coordinator, host, self.token, self.chunk_bytes, self.flows,
            self.window, self.threads,
        )  # fmt: skip


def start(count: int, setting: Setting, *, first: int = 0) -> list[Any]:
    """Starts `count` islands, numbered from `first`, and waits until they are up. IslandError with what they said."""
    return bring_up([Starting(f"island {first + i}", setting, first + i) for i in range(count)])


def bring_up(starting: Sequence[Any]) -> list[Any]:
    """Islands that know each other, once all that are starting are up; if one is not, all are ended."""
    try:
        islands = [s.island() for s in starting]
    except BaseException:
        for s in starting:
            s.kill()
        raise
    acquaint(islands)
    return islands


def acquaint(islands: Sequence[Any], new: Sequence[Any] | None = None) -> None:
    """Tells islands where the others listen. With `new`, only these and those they meet."""
    for island in islands:
        for other in islands:
            if island is not other and (new is None or island in new or other in new):
                island.send(("peer", other.id, [c.addresses for c in other.channels]))


class Starting:
    """An island whose processes are coming up; `island()` waits for them."""

    def __init__(self, name: str, setting: Setting, number: int) -> None:
        self.name, self.setting = name, setting
        self.id = f"{name}.{next(_incarnations)}"
        self.folder = Path(tempfile.mkdtemp(prefix="areca-island-"))
        logs = Path(setting.logs) if setting.logs else self.folder
        logs.mkdir(parents=True, exist_ok=True)
        self.devices = setting.devices
        host = setting.hosts[number] if number < len(setting.hosts) else "127.0.0.1"
        before = list(setting.launch[number]) if number < len(setting.launch) else []
        setup = setting.setup(name, self.id, host)
        if setting.processes > 1:
            setup = replace(setup, coordinator=f"127.0.0.1:{free_port()}")
        self.members = [
            _Member(replace(setup, rank=rank), self, logs / f"{name.replace(' ', '-')}.{rank}.log", before)
            for rank in range(setting.processes)
        ]

    def island(self) -> Any:
        """The island, once its processes are up."""
        from areca.pathways.elsewhere.remote import RemoteIsland

        until = time.monotonic() + START
        try:
            channels = [m.channel(until) for m in self.members]
        except BaseException:
            self.kill()
            raise
        shutil.rmtree(self.folder, ignore_errors=True)
        return RemoteIsland(self.name, self.id, self.setting.shape, channels, self.setting.deadline)

    def kill(self) -> None:
        """Ends the processes."""
        for m in self.members:
            m.process.kill()
            m.process.wait()
            with contextlib.suppress(OSError):
                m.listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class _Member:
    """One process on its way up."""

    def __init__(self, setup: Any, starting: Starting, log: Path, before: list[str]) -> None:
        self.setup, self.log = setup, log
        self.key = secrets.token_bytes(32)
        self.listener = Listener(str(starting.folder / f"{setup.rank}"), "AF_UNIX", authkey=self.key)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "JAX_NUM_CPU_DEVICES": str(starting.devices),
            "XLA_FLAGS": without_devices(os.environ.get("XLA_FLAGS", "")),
            "PYTHONUNBUFFERED": "1",
        }
        command = [*before, sys.executable, "-m", "areca.pathways.elsewhere.processes"]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already: said when it is waited for
            self.process.stdin.write(
                pickle.dumps((self.listener.address, self.key, setup, starting.devices, starting.setting.cache))
            )
            self.process.stdin.close()

        self.got: list[Any] = []
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()  # at once: the ranks of an island wait for each other before they are up

    def _accept(self) -> None:
        with contextlib.suppress(Exception):
            self.got.append(self.listener.accept())

    def channel(self, until: float) -> "ProcessChannel":
        """The connection to it, once it is up."""
        got = self.got
        while self.accepting.is_alive():
            self.accepting.join(0.05)
            if self.process.poll() is not None or time.monotonic() > until:
                break
        if not got:
            raise IslandError(f"{self.setup.name} did not start: {self._said()}")
        try:
            up = got[0].recv() if got[0].poll(max(0.0, until - time.monotonic())) else None
        except (EOFError, OSError):
            up = None
        if up is None or up[0] != "up":
            raise IslandError(f"{self.setup.name} did not start: {up[1] if up else self._said()}")
        self.listener.close()
        return ProcessChannel(self.process, got[0], up[1])

    def _said(self) -> str:
        lines = [s for s in self.log.read_text(errors="replace").splitlines() if s.strip()] if self.log.exists() else []
        code = self.process.poll()
        ended = f"it ended with code {code}" if code is not None else f"it did not answer within {START:g} s"
        return f"{ended}{': ' + lines[-1].strip() if lines else ''}."


class ProcessChannel:
    """Messages to a process of this machine."""

    def __init__(self, process: "subprocess.Popen[bytes]", connection: Connection, addresses: tuple[str, int]) -> None:
        self.process, self.connection, self.addresses = process, connection, addresses
        self.describe = f"process {process.pid}"

    def send(self, message: tuple[Any, ...]) -> None:
        self.connection.send(message)

    def listen(self, heard: Callable[[tuple[Any, ...]], None], ended: Callable[[str], None]) -> None:
        def run() -> None:
            try:
                while True:
                    heard(self.connection.recv())
            except (EOFError, OSError):
                ended(self.how())

        threading.Thread(target=run, name=f"areca-{self.describe}", daemon=True).start()

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.connection.close()

    def how(self) -> str:
        """How the process ended."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "its connection ended"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def free_port() -> int:
    """A port that was free a moment ago."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def without_devices(flags: str) -> str:
    """XLA_FLAGS without a number of devices, which each process is told otherwise."""
    return " ".join(f for f in flags.split() if not f.startswith("--xla_force_host_platform_device_count"))


def main() -> None:
    """The process of an island."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller, which ends this one
    address, key, setup, devices, cache = pickle.loads(sys.stdin.buffer.read())
    try:
        connection = Client(address, "AF_UNIX", authkey=key)
    except (EOFError, OSError):  # the controller is gone
        os._exit(1)
    lock = threading.Lock()

    def reply(message: tuple[Any, ...]) -> None:
        with lock, contextlib.suppress(OSError):
            connection.send(message)

    serve(setup, devices, cache, reply, connection.recv)


def agent_of(setup: Any, devices: int, cache: bool, reply: Callable[[tuple[Any, ...]], None]) -> Any:
    """Starts jax in this process, as a rank of an island, and its agent."""
    from areca import runtime

    runtime.prepare(setup.threads, devices=devices, cache=cache)
    import jax

    if setup.processes > 1:
        jax.distributed.initialize(setup.coordinator, setup.processes, setup.rank)
    from areca.pathways.elsewhere.agent import Agent

    return Agent(setup, reply)


def serve(
    setup: Any, devices: int, cache: bool, reply: Callable[[tuple[Any, ...]], None], receive: Callable[[], Any]
) -> None:
    """Makes the agent and hands it messages until they end."""
    try:
        agent = agent_of(setup, devices, cache, reply)
    except Exception as error:
        reply(("failed", f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"))
        os._exit(1)
    reply(("up", agent.links.address))
    try:
        while (message := receive())[0] != "close":
            agent.handle(message)
    except (EOFError, OSError):
        pass
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
