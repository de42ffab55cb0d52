"""What carries gradients between processes at least cost: jax.experimental.transfer beside plain TCP sockets.

    python benchmarks/wire.py

Two processes in two network namespaces (links.py), each pinned to one core of the machine, send each other 40 MiB of
jax arrays at once, in chunks and over several flows. Wall time is from the first start to the last end; processor
seconds are those of both processes and of the kernel's threads that take their packets. The ways take turns within each
round, so that ratios are of the same moment:

    jax            await_pull and pull of a chunk each; what arrives are jax arrays
    tcp            sendall of views of the arrays, recv_into one buffer that is made once and used again
    tcp viewed     the same, and each chunk becomes a jax array that lies in the buffer, without a copy
    tcp copied     the same, and each chunk is copied out of the buffer into a jax array of its own

With --busy both cores compute all the while, as an island does that exchanges beside its backward pass; processor
seconds are then those beyond what the computing takes without an exchange.
"""

import argparse
import json
import os
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import links

WAYS = ("jax", "tcp", "tcp viewed", "tcp copied")
MIB = 1 << 20
_SOFTIRQ: dict[int, Path] = {}
BULK = 8 * MIB  # of jax's own buffers: the default reserves gigabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=40, help="each way")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 4, 8], help="MiB a chunk")
    parser.add_argument("--flows", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--mbits", type=float, nargs="+", default=[0, 1000], help="the link's speeds; 0: no limit")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--busy", action="store_true", help="a program computes on each core meanwhile")
    parser.add_argument("--json", type=Path, help="a file for all single figures")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        _side(json.loads(asked.side))
        return
    found = {}
    for mbits in asked.mbits:
        with links.link(1e6 * mbits or None) as made:
            found[mbits] = _measured(made, asked)
        _report(mbits, found[mbits], asked)
    if asked.json:
        asked.json.write_text(json.dumps({str(m): [[*k, v] for k, v in f.items()] for m, f in found.items()}))


def _measured(made: links.Link, asked: argparse.Namespace) -> dict[tuple, dict[str, list[float]]]:
    """By (way, MiB a chunk, flows): seconds, processor seconds of both, and bytes on the wire of one direction."""
    cores = sorted(os.sched_getaffinity(0))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "NPROC": "1"}
    sides = []
    for side in (0, 1):
        told = {"address": made.addresses[side], "mib": asked.mib, "flows": asked.flows, "chunks": asked.chunks}
        told |= {"busy": asked.busy}
        command = made.command(side, [sys.executable, __file__, "--side", json.dumps(told)], core=cores[-side])
        sides.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        )
    try:
        addresses = _both(sides, ["listen", None], ["listen", None])
        _both(sides, *(["connect", a] for a in reversed(addresses)))
        configurations = [(w, c, f) for c in asked.chunks for f in asked.flows for w in WAYS]
        found = {c: {"wall": [], "cpu": [], "sent": []} for c in configurations}
        for i in range(asked.rounds + 2):
            for c in configurations:
                times = _both(sides, ["go", c], ["go", c])
                spent = _both(sides, ["spent", None], ["spent", None])
                if i >= 2:
                    found[c]["wall"].append(max(t[1] for t in times) - min(t[0] for t in times))
                    found[c]["cpu"].append(sum(s[0] for s in spent))
                    found[c]["sent"].append(spent[0][1])
        return found
    finally:
        for p in sides:
            p.kill()
            p.wait()


def _both(sides: list[subprocess.Popen], *words: list) -> list:
    for p, word in zip(sides, words, strict=True):
        p.stdin.write(json.dumps(word) + "\n")
        p.stdin.flush()
    answers = []
    for p in sides:
        line = p.stdout.readline()
        if not line:
            raise SystemExit("a side has ended")
        answers.append(json.loads(line))
    return answers


# --- a side


def _side(told: dict) -> None:
    import jax
    import numpy as np

    size = told["mib"] * MIB
    arrays = {c: [jax.numpy.ones(n // 4, "float32") + i for i, n in enumerate(_cut(size, c * MIB))]
              for c in told["chunks"]}  # fmt: skip
    jax.block_until_ready(arrays)
    room = np.empty(size + 64, "uint8")
    room = memoryview(room)[-room.ctypes.data % 64 :][:size]  # where jax would put an array
    address, opened, checked = told["address"], {}, []
    cpu = spent = 0.0
    sent = 0
    busy = _Busy() if told["busy"] else None
    processor = busy.beyond if busy else _processor
    for line in sys.stdin:
        word, value = json.loads(line)
        answer = None
        if word == "listen":
            opened = {f: (_Jax(address, f), _Tcp(address, f, room)) for f in told["flows"]}
            answer = [[way.listen() for way in opened[f]] for f in told["flows"]]
        elif word == "connect":
            for f, peers in zip(told["flows"], value, strict=True):
                for way, peer in zip(opened[f], peers, strict=True):
                    way.connect(peer)
        elif word == "go":
            name, chunk, flows = value
            way = opened[flows][name != "jax"]
            cpu, sent = processor(), _bytes_out()
            started = time.monotonic()
            got = way.exchange(arrays[chunk], name)
            answer, spent = [started, time.monotonic()], processor()
            if got[0] is not None and value not in checked:
                checked.append(value)
                assert all((a == b).all() for a, b in zip(got, arrays[chunk], strict=True)), value
            del got
        elif word == "spent":
            answer = [spent - cpu, _bytes_out() - sent]
            if busy:
                busy.settle()
        print(json.dumps(answer), flush=True)


def _cut(size: int, chunk: int) -> list[int]:
    return [min(chunk, size - start) for start in range(0, size, chunk)]


class _Busy:
    """A program of about a millisecond, again and again; what it takes is measured anew before each exchange."""

    def __init__(self) -> None:
        import jax

        x = jax.numpy.ones((256, 256), "float32")
        self.program, self.x, self.count = jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda _, y: y @ x / 256, x)), x, 0
        threading.Thread(target=self._run, daemon=True).start()
        self.settle()

    def settle(self) -> None:
        count, started = self.count, _processor()
        time.sleep(0.2)
        self.since, self.counted = _processor(), self.count
        self.each = (self.since - started) / max(1, self.counted - count)

    def _run(self) -> None:
        while True:
            self.program(self.x).block_until_ready()
            self.count += 1

    def beyond(self) -> float:
        return _processor() - self.since - (self.count - self.counted) * self.each


def _processor() -> float:
    """Seconds of this process, and of the kernel's thread that takes the core's packets out of turn."""
    core = min(os.sched_getaffinity(0))
    if core not in _SOFTIRQ:
        names = (p for p in Path("/proc").glob("[0-9]*/comm") if p.read_text().strip() == f"ksoftirqd/{core}")
        _SOFTIRQ[core] = next(names).with_name("schedstat")
    return time.process_time() + 1e-9 * int(_SOFTIRQ[core].read_text().split()[0])


def _bytes_out() -> int:
    """Bytes that have left this host over the link."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith(links.DEVICE):
            return int(line.split(":")[1].split()[8])
    return 0


class _Jax:
    """One transfer server with `flows` transports."""

    def __init__(self, address: str, flows: int) -> None:
        import jax
        from jax.experimental import transfer

        self.device = jax.devices()[0]
        self.server = transfer.start_transfer_server(
            self.device.client, f"{address}:0", [f"{address}:0"] * flows, transfer_size=BULK
        )
        self.next = 0

    def listen(self) -> str:
        return self.server.address()

    def connect(self, peer: str) -> None:
        self.connection = self.server.connect(peer)

    def exchange(self, arrays: list, _: str) -> list:
        import jax

        here = jax.sharding.SingleDeviceSharding(self.device)
        for i, a in enumerate(arrays, self.next):
            self.server.await_pull(i, [a])
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=here) for a in arrays]
        got = [self.connection.pull(i, [s])[0] for i, s in enumerate(structs, self.next)]
        self.next += len(arrays)
        return jax.block_until_ready(got)


class _Tcp:
    """`flows` sockets, used both ways; chunk i travels over flow i % flows. A thread for each direction of each."""

    def __init__(self, address: str, flows: int, room: memoryview) -> None:
        self.address, self.flows, self.room = address, flows, room
        self.server = socket.create_server((address, 0), backlog=flows)
        self.sockets: list[socket.socket] = []
        self.done: queue.SimpleQueue = queue.SimpleQueue()

    def listen(self) -> list:
        return [self.address, self.server.getsockname()[1]]

    def connect(self, peer: list) -> None:
        if self.address < peer[0]:
            self.sockets = [self.server.accept()[0] for _ in range(self.flows)]
        else:
            self.sockets = [socket.create_connection(tuple(peer)) for _ in range(self.flows)]
        self.work = []
        for s in self.sockets:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for run in (self._send, self._receive):
                work: queue.SimpleQueue = queue.SimpleQueue()
                threading.Thread(target=run, args=(s, work), daemon=True).start()
                self.work.append(work)

    def exchange(self, arrays: list, way: str) -> list:
        import numpy as np

        start = 0
        for i, a in enumerate(arrays):
            flow = i % self.flows
            self.work[2 * flow].put(memoryview(np.asarray(a)).cast("B"))
            self.work[2 * flow + 1].put((i, self.room[start : start + a.nbytes], way))
            start += a.nbytes
        got: list = [None] * len(arrays)
        for _ in range(2 * len(arrays)):
            i, array = self.done.get()
            if i is not None:
                got[i] = array
        return got

    def _send(self, to: socket.socket, work: queue.SimpleQueue) -> None:
        while True:
            to.sendall(work.get())
            self.done.put((None, None))

    def _receive(self, source: socket.socket, work: queue.SimpleQueue) -> None:
        import jax
        import numpy as np

        while True:
            i, view, way = work.get()
            left = view
            while len(left):
                n = source.recv_into(left)
                if not n:
                    return
                left = left[n:]
            array = None
            if way == "tcp copied":
                array = jax.numpy.array(np.frombuffer(view, "float32"), copy=True).block_until_ready()
            elif way == "tcp viewed":
                array = jax.device_put(np.frombuffer(view, "float32"), may_alias=True)
                if array.unsafe_buffer_pointer() != np.frombuffer(view, "uint8").ctypes.data:
                    raise RuntimeError("the array is a copy and no view")
            self.done.put((i, array))


def _report(mbits: float, found: dict[tuple, dict[str, list[float]]], asked: argparse.Namespace) -> None:
    speed = f"{mbits:,.0f} Mbit/s" if mbits else "no limit"
    beside = ", both cores computing" if asked.busy else ""
    load = os.getloadavg()[0]
    print(f"\n{asked.mib} MiB both ways, {speed}{beside}; medians of {asked.rounds}; load {load:.1f}")
    print(f"{'MiB a chunk':>11}{'flows':>6}  {'way':<14}{'wall ms':>8}  {'(quartiles)':<14}{'cpu ms, both':>13}"
          f"{'wall of jax':>12}{'cpu of jax':>12}{'on the wire':>12}")  # fmt: skip
    for (way, chunk, flows), f in found.items():
        jax = found["jax", chunk, flows]
        quarter = sorted(f["wall"])[asked.rounds // 4], sorted(f["wall"])[-1 - asked.rounds // 4]
        ratios = (statistics.median(a / b for a, b in zip(f[k], jax[k], strict=True)) for k in ("wall", "cpu"))
        wire = statistics.median(f["sent"]) / (asked.mib * MIB)
        print(f"{chunk:>11}{flows:>6}  {way:<14}{1e3 * statistics.median(f['wall']):>8.0f}  "
              f"{f'({1e3 * quarter[0]:.0f} to {1e3 * quarter[1]:.0f})':<14}{1e3 * statistics.median(f['cpu']):>13.0f}"
              + "".join(f"{r:>{w}.2f}" for r, w in zip(ratios, (12, 12), strict=True)) + f"{wire:>12.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
