"""Sockets over which islands of different processes send each other values, straight, without the controller.

A sender dials each peer over some flows, connections that share its link; a value's pieces (the arrays of single
devices) are cut into chunks, which leave as soon as the piece is computed. A receiver puts chunks where they belong in
a buffer that becomes the piece. Process and rank of one island send to the same rank of another. Everything ends when
a peer is called lost: what had not arrived whole from it never will.

A program is enqueued on what has arrived, never on what will: a peer that dies leaves nothing stuck in XLA. That, and
half the time of `jax.experimental.transfer` between two processes of one machine (docs/log.md), is why this is ours.
"""

import contextlib
import hmac
import json
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Tag = tuple[int, int]  # execution, transfer of its graph

# Tag; piece, how many there are; offset and length of this chunk in it; its bytes. Piece FAILED: a sentence follows,
# and for how many stands whether an island is lost.
_HEADER = struct.Struct("!QIIIQQQ")
_FAILED = 0xFFFFFFFF
_WAKE_BYTES = 1 << 20  # that must have come before a receiver of as many or more is woken
_WAKE_LEAST = 64 << 10  # up to as many are read as they come
_ALIGNED = 64  # bytes; XLA's CPU client takes an aligned buffer as it is


class Arrival:
    """A value on its way here. `done` is set when it is whole or failed."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.pieces: list[np.ndarray] = []  # bytes
        self.error, self.lost = "", False  # lost: because an island is
        self.began = self.seen = time.perf_counter()  # when its first chunk came, and its last
        self._missing: list[int] = []  # bytes of each piece; -1 before its first chunk

    def expect(self, piece: int, pieces: int, size: int) -> None:
        """Makes room for a piece, at its first chunk."""
        if not self.pieces:
            self.began = time.perf_counter()
            self.pieces, self._missing = [_EMPTY] * pieces, [-1] * pieces
        if self._missing[piece] < 0:
            self.pieces[piece], self._missing[piece] = buffer(size), size

    def came(self, piece: int, length: int) -> None:
        """A chunk is in its place."""
        self.seen = time.perf_counter()
        self._missing[piece] -= length
        if not any(self._missing):
            self.done.set()

    def fail(self, error: str, lost: bool) -> None:
        """It will not come."""
        if not self.done.is_set():
            self.error, self.lost = error, lost
            self.done.set()


_EMPTY = np.empty(0, np.uint8)


def buffer(size: int) -> np.ndarray:
    """Bytes that an array of the device can take over without a copy."""
    raw = np.empty(size + _ALIGNED, np.uint8)
    start = -raw.ctypes.data % _ALIGNED
    return raw[start : start + size]


class Links:
    """One process's ends of all links. `broken(peer, sentence)` is called when a connection to a peer fails."""

    def __init__(
        self, me: str, host: str, token: bytes, chunk_bytes: int, flows: int, broken: Callable[[str, str], None]
    ) -> None:
        self.me, self.token, self.chunk, self.flows, self.broken = me, token, chunk_bytes, flows, broken
        self.listener = socket.create_server((host, 0), backlog=64)
        self.address = self.listener.getsockname()[:2]
        self._lock = threading.Lock()
        self._arrivals: dict[str, dict[Tag, Arrival]] = {}  # by peer
        self._lost: dict[str, str] = {}
        self._known: dict[str, tuple[str, int]] = {}
        self._out: dict[str, _Outbox] = {}
        self._sockets: dict[str, list[socket.socket]] = {}  # that peers send over
        threading.Thread(target=self._accept, name="areca-links", daemon=True).start()

    def know(self, peer: str, address: tuple[str, int]) -> None:
        """Where a peer listens."""
        self._known[peer] = address

    def lose(self, peer: str, error: str) -> None:
        """A peer is gone: what has not arrived from it fails, and what would be sent to it is dropped."""
        with self._lock:
            self._lost[peer] = error
            failed = list(self._arrivals.get(peer, {}).values())
            out, sockets = self._out.pop(peer, None), self._sockets.pop(peer, [])
        for arrival in failed:
            arrival.fail(error, True)
        if out is not None:
            out.close()
        for s in sockets:
            _shut(s)

    def send(self, peer: str, tag: Tag, pieces: Sequence[Any], error: str = "", lost: bool = False) -> "Sending":
        """Sends arrays of single devices when they are computed, or the sentence why there are none."""
        with self._lock:
            task = Sending(tag, list(pieces), error, lost)
            if peer in self._lost:
                task.gone.set()
                return task
            out = self._out.get(peer)
            if out is None:
                out = self._out[peer] = _Outbox(self, peer)
            out.sending = [t for t in out.sending if not t.gone.is_set()]
            out.sending.append(task)
        out.tasks.put(task)
        return task

    def arrival(self, peer: str, tag: Tag) -> Arrival:
        """What a peer sends under a tag."""
        with self._lock:
            made = self._arrivals.setdefault(peer, {}).setdefault(tag, Arrival())
            lost = self._lost.get(peer)
        if lost is not None:
            made.fail(lost, True)
        return made

    def forget(self, peer: str, tag: Tag) -> None:
        """What was sent under a tag was taken."""
        with self._lock:
            self._arrivals.get(peer, {}).pop(tag, None)

    def close(self) -> None:
        """Ends all connections."""
        _shut(self.listener)
        for peer in [*self._out, *self._sockets]:
            self.lose(peer, "it was closed.")

    def dial(self, peer: str) -> socket.socket:
        """A connection to a peer, which knows the token."""
        s = socket.create_connection(self._known[peer], timeout=30)
        s.settimeout(None)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = json.dumps({"from": self.me, "token": self.token.hex()}).encode()
        s.sendall(struct.pack("!I", len(hello)) + hello)
        return s

    def _accept(self) -> None:
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._receive, args=(s,), name="areca-link-in", daemon=True).start()

    def _receive(self, s: socket.socket) -> None:
        try:
            s.settimeout(30)
            (length,) = struct.unpack("!I", _read(s, 4))
            hello = json.loads(bytes(_read(s, min(length, 4096))))
            if not hmac.compare_digest(bytes.fromhex(hello["token"]), self.token):
                return _shut(s)
            s.settimeout(None)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = hello["from"]
            with self._lock:
                if peer in self._lost:
                    return _shut(s)
                self._sockets.setdefault(peer, []).append(s)
            head = bytearray(_HEADER.size)
            while True:
                _read_into(s, memoryview(head))
                execution, transfer, piece, pieces, offset, length, size = _HEADER.unpack(head)
                arrival = self.arrival(peer, (execution, transfer))
                if piece == _FAILED:
                    arrival.fail(bytes(_read(s, length)).decode(), bool(pieces))
                    continue
                with self._lock:
                    arrival.expect(piece, pieces, size)
                _read_into(s, memoryview(arrival.pieces[piece])[offset : offset + length])
                with self._lock:
                    arrival.came(piece, length)
        except (OSError, EOFError, ValueError, KeyError, struct.error):
            _shut(s)  # whether the peer is gone is the controller's to say


class Sending:
    """A value on its way out. `gone` is set when its memory is read no more: until then nothing may take it."""

    def __init__(self, tag: Tag, pieces: list[Any], error: str, lost: bool) -> None:
        self.tag, self.pieces, self.error, self.lost = tag, pieces, error, lost
        self.gone = threading.Event()
        self._left = 1  # chunks, and the cutting itself
        self._lock = threading.Lock()

    def more(self) -> None:
        with self._lock:
            self._left += 1

    def less(self) -> None:
        with self._lock:
            self._left -= 1
            ended = not self._left
        if ended:
            self.gone.set()


class _Outbox:
    """What goes to one peer: a thread that waits until pieces are computed, and one for each flow that sends chunks."""

    def __init__(self, links: Links, peer: str) -> None:
        self.links, self.peer = links, peer
        self.tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.chunks: queue.Queue[Any] = queue.Queue(maxsize=4 * links.flows)
        self.sockets: list[socket.socket] = []
        self.sending: list[Sending] = []
        self.closed = False
        threading.Thread(target=self._cut, name=f"areca-to-{peer}", daemon=True).start()
        for _ in range(links.flows):
            threading.Thread(target=self._send, name=f"areca-flow-to-{peer}", daemon=True).start()

    def close(self) -> None:
        self.closed = True
        self.tasks.put(None)
        for s in self.sockets:
            _shut(s)
        for task in self.sending:
            task.gone.set()

    def _cut(self) -> None:
        while (task := self.tasks.get()) is not None and not self.closed:
            error = task.error
            if not error:
                try:
                    for number, piece in enumerate(task.pieces):  # each leaves when it is computed
                        view = np.ascontiguousarray(np.asarray(piece)).reshape(-1).view(np.uint8).data
                        self._chunks(task, number, view)
                except Exception as failed:  # what went wrong in the program that makes it
                    error = f"{type(failed).__name__}: {(str(failed).strip().splitlines() or [''])[0]}"
            if error:
                said = error.encode()
                self._put(task, (_HEADER.pack(*task.tag, _FAILED, task.lost, 0, len(said), 0), memoryview(said)))
            task.pieces = []
            task.less()
        for _ in range(self.links.flows):
            self._put(None, None)

    def _chunks(self, task: Sending, piece: int, view: memoryview) -> None:
        size, pieces = len(view), len(task.pieces)
        for start in range(0, size, self.links.chunk) if size else (0,):
            part = view[start : start + self.links.chunk]
            self._put(task, (_HEADER.pack(*task.tag, piece, pieces, start, len(part), size), part))

    def _put(self, task: Sending | None, chunk: Any) -> None:
        if task is not None:
            task.more()
        placed = False
        while not (self.closed or placed):
            with contextlib.suppress(queue.Full):
                self.chunks.put((task, chunk), timeout=1)
                placed = True

    def _send(self) -> None:
        try:
            s = self.links.dial(self.peer)
            self.sockets.append(s)
            while not self.closed:
                task, chunk = self.chunks.get()
                if task is None:
                    return
                _send_all(s, *chunk)
                task.less()
        except OSError as error:
            if not self.closed:
                self.links.broken(self.peer, f"the link to {self.peer} broke: {error.strerror or error}")


def _read(s: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    _read_into(s, memoryview(data))
    return data


def _read_into(s: socket.socket, view: memoryview) -> None:
    if len(view) > _WAKE_LEAST:
        _read_seldom(s, view)
        return
    while len(view):
        got = s.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]


def _read_seldom(s: socket.socket, view: memoryview) -> None:
    """The same, woken only when as much as is worth it has come: each time takes the processor from XLA's threads.

    It polls: a `recv` that blocks counts anew after what it has copied, and would wait for more than is sent.
    """
    ready = select.poll()
    ready.register(s, select.POLLIN)
    while len(view):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(view), _WAKE_BYTES))
        ready.poll()
        with contextlib.suppress(BlockingIOError):
            got = s.recv_into(view, 0, socket.MSG_DONTWAIT)
            if not got:
                raise EOFError
            view = view[got:]
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _send_all(s: socket.socket, head: bytes, body: memoryview) -> None:
    """Both, the first in one packet with the second's beginning."""
    sent = s.sendmsg((head, body))
    if sent < len(head):
        s.sendall(head[sent:])
        sent = len(head)
    s.sendall(body[sent - len(head) :])


def _shut(s: socket.socket) -> None:
    with contextlib.suppress(OSError):
        s.shutdown(socket.SHUT_RDWR)
    s.close()
