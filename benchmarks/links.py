"""Two hosts on one machine with a link of a chosen speed between them: for benchmarks of what is exchanged.

    with links.link(1e9) as link:
        for side in (0, 1):
            subprocess.Popen(link.command(side, [sys.executable, "island.py", link.addresses[side]], core=side))

Two network namespaces joined by a veth pair, with a token bucket of the kernel (tc's tbf) at each end: each direction
has the whole speed, as in a full-duplex cable. Data goes over TCP between the two addresses; for control, pipes and
AF_UNIX sockets on the file system work across namespaces. `command` execs, so the process that is started is the one
that was asked for. Needs root, iproute2 and a kernel with veth and tbf. Where one of them is missing, `link(...,
fallback=True)` gives 127.0.0.1 and a bucket in user space that the sender has to ask (`Bucket.sendall`); `kind` says
which it is and `missing` why, and a benchmark must print them.

    python benchmarks/links.py      what plain sockets measure over links of several speeds
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

NAMESPACES, USER_SPACE = "network namespaces, veth and tbf", "token bucket in user space"
PREFIX = "areca-link"  # of a namespace's name; then the process that made it and the side
DEVICE = "wire0"  # on both sides
NETWORK = "198.18.0"  # RFC 2544: set apart for benchmarks of networks
BURST_BYTES = 128 << 10  # more than one segment of TCP's offload, which the kernel would have to cut otherwise
QUEUE_BYTES = 32 << 20  # waiting, before what comes is lost: several flows of 4 MB each, TCP's most in a queue


class NoLink(Exception):
    """There can be no namespaces here; one sentence says what is missing."""


@dataclass(frozen=True)
class Link:
    kind: str  # NAMESPACES or USER_SPACE
    bits_per_second: float | None  # of each direction; None: as fast as the machine copies
    addresses: tuple[str, str]
    namespaces: tuple[str, str] | None
    missing: str = ""  # why it is in user space

    def command(self, side: int, argv: Sequence[str], core: int | None = None) -> list[str]:
        """`argv` as it is run on a side (0 or 1), pinned to a core of the machine if one is given."""
        inside = ["ip", "netns", "exec", self.namespaces[side]] if self.namespaces else []
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        return [*inside, *pinned, *argv]

    def set_speed(self, bits_per_second: float | None) -> None:
        """Another speed from here on. Only between namespaces."""
        for name in self.namespaces or ():
            _set_speed(name, bits_per_second)

    def bucket(self) -> "Bucket":
        """For the sender of one direction, one for all its flows. It never waits where the kernel does it."""
        return Bucket(self.bits_per_second if self.kind == USER_SPACE else None)


class Bucket:
    """A token bucket that the sender asks before it sends. Safe to share between threads; ~50 us late at each wait."""

    def __init__(self, bits_per_second: float | None, burst: int = BURST_BYTES) -> None:
        self.seconds_per_byte = 8 / bits_per_second if bits_per_second else 0.0
        self.burst = burst
        self._lock = threading.Lock()
        self._free_at = -float("inf")  # when what was allowed has gone out

    def take(self, size: int) -> None:
        """Waits until `size` bytes may leave, such that no more than the speed and one burst have ever left."""
        if not self.seconds_per_byte:
            return
        with self._lock:
            now = time.monotonic()
            leaves = max(self._free_at, now - self.burst * self.seconds_per_byte)
            self._free_at = leaves + size * self.seconds_per_byte
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)

    def sendall(self, to: socket.socket, data: memoryview | bytes) -> None:
        """`socket.sendall` at the link's speed: half a burst at a time, so that flows take turns."""
        view = memoryview(data).cast("B")
        step = self.burst // 2 if self.seconds_per_byte else len(view)
        for start in range(0, len(view), max(1, step)):
            part = view[start : start + step]
            self.take(len(part))
            to.sendall(part)


@contextmanager
def link(bits_per_second: float | None = None, *, fallback: bool = False) -> Iterator[Link]:
    """A link of that speed in each direction, or of no limit; gone at the end, with what still runs on its hosts.

    Raises NoLink, in one sentence, where the machine has no namespaces to give and no `fallback` is asked for.
    """
    if bits_per_second is not None and not bits_per_second >= 1e3:
        raise ValueError(f"a link of {bits_per_second} bit/s is too slow; give at least 1000, or None for no limit")
    try:
        missing = why_not(bits_per_second)
        if missing:
            raise NoLink(missing)
        _remove_stale()
        names = (f"{PREFIX}-{os.getpid()}-0", f"{PREFIX}-{os.getpid()}-1")
        addresses = (f"{NETWORK}.1", f"{NETWORK}.2")
        try:
            _make(names, addresses, bits_per_second)
        except NoLink:
            _remove(names)
            raise
    except NoLink as why:
        if not fallback:
            raise
        yield in_user_space(bits_per_second, str(why))
        return
    stops = _as_exits()
    try:
        yield Link(NAMESPACES, bits_per_second, addresses, names)
    finally:
        _remove(names)
        for number, handler in stops:
            signal.signal(number, handler)


def in_user_space(bits_per_second: float | None = None, missing: str = "") -> Link:
    """The fallback: both sides on 127.0.0.1, the speed kept by the senders' buckets."""
    return Link(USER_SPACE, bits_per_second, ("127.0.0.1", "127.0.0.1"), None, missing)


def why_not(bits_per_second: float | None = None) -> str:
    """What is missing for namespaces, in a sentence; empty where nothing is."""
    tools = ["ip", "taskset"] + (["tc"] if bits_per_second else [])
    if absent := [t for t in tools if not shutil.which(t)]:
        return f"A link between namespaces needs {' and '.join(absent)}; install iproute2 and util-linux."
    if os.geteuid() != 0:
        return "A link between namespaces needs root; run as root (sudo), or with the token bucket in user space."
    return ""


def _make(names: tuple[str, str], addresses: tuple[str, str], bits_per_second: float | None) -> None:
    _remove(names)
    for name in names:
        _ip("netns", "add", name)
    _ip("link", "add", DEVICE, "netns", names[0], "type", "veth", "peer", "name", DEVICE, "netns", names[1])
    for name, address in zip(names, addresses, strict=True):
        _ip("-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", DEVICE, "up")
        if bits_per_second:
            _set_speed(name, bits_per_second)


def _set_speed(name: str, bits_per_second: float | None) -> None:
    if bits_per_second:
        speed = ("rate", f"{round(bits_per_second)}bit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))
        _do("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", "tbf", *speed)
    else:
        with suppress(NoLink):  # it had no limit
            _do("tc", "-n", name, "qdisc", "del", "dev", DEVICE, "root")


def _remove_stale() -> None:
    """What processes left that were killed before they could."""
    for name in _ip("netns", "list").split():
        found = re.fullmatch(rf"{PREFIX}-(\d+)-[01]", name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _remove((name,))


def _remove(names: Sequence[str]) -> None:
    """Ends what still runs there: on a core of the machine it would be in the next measurement's way."""
    present = _ip("netns", "list").split()
    for name in names:
        if name in present:
            for process in _ip("netns", "pids", name).split():
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            with suppress(NoLink):  # the other side may have taken both ends
                _ip("-n", name, "link", "del", DEVICE)
            _ip("netns", "del", name)


def _ip(*words: str) -> str:
    return _do("ip", *words)


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoLink(f"This kernel gives no link: `{' '.join(words)}` says {said[-1] if said else done.returncode!r}.")
    return done.stdout


def _as_exits() -> list[tuple[int, object]]:
    """SIGTERM and SIGHUP leave through `finally`; the handlers that were there. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [(n, signal.signal(n, lambda number, _: sys.exit(128 + number))) for n in (signal.SIGTERM, signal.SIGHUP)]


# --- what plain sockets measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbits", type=float, nargs="+", default=[100, 1000, 4000, 0], help="speeds; 0: no limit")
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long each speed sends")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--user-space", action="store_true", help="the fallback, also where namespaces would do")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        _side(json.loads(asked.side))
        return
    for mbits in asked.mbits:
        bits = 1e6 * mbits or None
        with nullcontext(in_user_space(bits)) if asked.user_space else link(bits, fallback=True) as made:
            if made.missing:
                print(made.missing)
            size = round(min(256 << 20, (1e6 * mbits or 8e9) / 8 * asked.seconds / asked.rounds))
            _report(made, _measured(made, size, asked.rounds), size)


def _measured(made: Link, size: int, rounds: int) -> dict[str, list[float]]:
    """Two processes, one on each core: pings of one byte, then `size` bytes one way, then both ways at once."""
    own = [sys.executable, __file__, "--side"]
    told = {"rounds": rounds, "size": size, "bits": made.bits_per_second, "kind": made.kind}
    cores = sorted(os.sched_getaffinity(0))
    listener = subprocess.Popen(
        made.command(0, [*own, json.dumps(told | {"listen": made.addresses[0]})], core=cores[0]),
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert listener.stdout
    port = int(listener.stdout.readline())
    to = {"connect": [made.addresses[0], port]}
    other = subprocess.run(
        made.command(1, [*own, json.dumps(told | to)], core=cores[-1]), stdout=subprocess.PIPE, text=True, check=True
    )
    listener.wait(timeout=60)
    return json.loads(other.stdout)


def _side(told: dict) -> None:
    bucket = Link(told["kind"], told["bits"], ("", ""), None).bucket()
    if address := told.get("listen"):
        with socket.create_server((address, 0)) as server:
            print(server.getsockname()[1], flush=True)
            to = server.accept()[0]
    else:
        to = socket.create_connection(tuple(told["connect"]))
    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size, rounds, first = told["size"], told["rounds"], "connect" in told
    data, room = bytes(size), bytearray(size)
    found: dict[str, list[float]] = {"ping": [], "one way": [], "both ways": []}

    def timed(name: str, exchange) -> None:
        started = time.perf_counter()
        exchange()
        found[name].append(time.perf_counter() - started)

    def ping() -> None:
        if first:
            to.sendall(b"x")
        to.recv(1)
        if not first:
            to.sendall(b"x")

    def one_way() -> None:
        if first:
            bucket.sendall(to, data)
            to.recv(1)
        else:
            _receive(to, room)
            to.sendall(b"x")

    def both() -> None:
        sender = threading.Thread(target=bucket.sendall, args=(to, data))
        sender.start()
        _receive(to, room)
        sender.join()

    for _ in range(200):
        timed("ping", ping)
    for _ in range(rounds):
        timed("one way", one_way)
        ping()
        timed("both ways", both)
        ping()
    if first:
        print(json.dumps(found))


def _receive(source: socket.socket, room: bytearray) -> None:
    view = memoryview(room)
    while len(view):
        got = source.recv_into(view)
        if not got:
            raise ConnectionError("the other side has gone")
        view = view[got:]


def _report(made: Link, found: dict[str, list[float]], size: int) -> None:
    speed = f"{made.bits_per_second / 1e6:,.0f} Mbit/s" if made.bits_per_second else "no limit"
    line = [f"{speed:>13}, {made.kind}: ping {1e6 * statistics.median(found['ping']):.0f} us"]
    for name in ("one way", "both ways"):
        rates = sorted(8 * size / seconds / 1e6 for seconds in found[name])
        middle = statistics.median(rates)
        of = f", {middle * 1e6 / made.bits_per_second:.3f} of it" if made.bits_per_second else ""
        line.append(f"{name} {middle:,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f}) Mbit/s{of}")
    print("; ".join(line), flush=True)


if __name__ == "__main__":
    main()
