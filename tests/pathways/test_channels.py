"""What islands send each other, without any island: chunks over flows, failures, peers that are lost or not known."""

import socket
import struct
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from areca.pathways.elsewhere.links import _HEADER, Links

TOKEN = b"t" * 32


@pytest.fixture
def two():
    """Links of a and b, which know each other, by chunk size and flows."""
    made = []

    def make(chunk_bytes=1 << 20, flows=1):
        broken: list[str] = []
        both = [
            Links(name, "127.0.0.1", TOKEN, chunk_bytes, flows, lambda peer, why: broken.append(why)) for name in "ab"
        ]
        for one, other in (both, both[::-1]):
            one.know(other.me, other.address)
        made.extend(both)
        return *both, broken

    yield make
    for links in made:
        links.close()


@pytest.mark.parametrize(("chunk_bytes", "flows"), [(1 << 20, 1), (7, 1), (100, 3)])
def test_values_arrive_whole_in_any_chunks(two, chunk_bytes, flows):
    a, b, _ = two(chunk_bytes, flows)
    rng = np.random.default_rng(0)
    pieces = [
        jnp.asarray(rng.normal(size=(13, 5)), jnp.float32),
        jnp.asarray(rng.normal(size=(3,)), jnp.bfloat16),
        jnp.asarray(7, jnp.int32),
        jnp.zeros((0, 4), jnp.float32),
    ]
    sent = [a.send("b", (1, n), pieces) for n in range(5)]
    for n in reversed(range(5)):
        arrival = b.arrival("a", (1, n))
        assert arrival.done.wait(20)
        for piece, bytes_ in zip(pieces, arrival.pieces, strict=True):
            found = bytes_.view(np.asarray(piece).dtype).reshape(piece.shape)
            np.testing.assert_array_equal(found, np.asarray(piece))
            assert not bytes_.size or bytes_.ctypes.data % 64 == 0
    assert all(s.gone.wait(20) for s in sent)


@pytest.mark.parametrize("size", [1, 64 << 10, (64 << 10) + 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 7])
def test_what_comes_in_dribs_is_not_waited_for_beyond_its_end(two, size):
    # A receiver sleeps until much has come; the last of it may be little.
    a, b, _ = two(8 << 20)
    data = np.random.default_rng(0).bytes(size)
    arrival = b.arrival("a", (1, 0))
    with a.dial("b") as s:
        s.sendall(_HEADER.pack(1, 0, 0, 1, 0, size, size))
        for start in range(0, size, 700_001):
            s.sendall(data[start : start + 700_001])
            time.sleep(0.02)
        assert arrival.done.wait(20)
        s.sendall(_HEADER.pack(2, 0, 0, 1, 0, 3, 3) + b"end")
        assert b.arrival("a", (2, 0)).done.wait(20)
    assert arrival.pieces[0].tobytes() == data


def test_a_peer_that_ends_in_the_middle_of_a_value_keeps_no_thread_waiting(two):
    a, b, _ = two()
    before = sum(t.name == "areca-link-in" for t in threading.enumerate())
    with a.dial("b") as s:
        s.sendall(_HEADER.pack(1, 0, 0, 1, 0, 4 << 20, 4 << 20) + bytes(100))
        time.sleep(0.1)
    until = time.monotonic() + 20
    while sum(t.name == "areca-link-in" for t in threading.enumerate()) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert sum(t.name == "areca-link-in" for t in threading.enumerate()) == before
    assert not b.arrival("a", (1, 0)).done.is_set()


def test_an_error_is_sent_in_place_of_the_value(two):
    a, b, _ = two()
    a.send("b", (1, 0), [], "no such luck", lost=True)
    arrival = b.arrival("a", (1, 0))
    assert arrival.done.wait(20)
    assert (arrival.error, arrival.lost) == ("no such luck", True)


def test_what_a_lost_peer_owed_fails_at_once_and_what_had_arrived_stays(two):
    a, b, _ = two()
    a.send("b", (1, 0), [jnp.arange(10)])
    whole, owed = b.arrival("a", (1, 0)), b.arrival("a", (2, 0))
    assert whole.done.wait(20)
    threading.Timer(0.2, b.lose, ("a", "a was lost.")).start()
    assert owed.done.wait(20)
    assert (owed.error, owed.lost, whole.error) == ("a was lost.", True, "")
    assert b.arrival("a", (3, 0)).error == "a was lost."
    assert b.send("a", (1, 0), [jnp.arange(10)]).gone.is_set()


def test_a_peer_that_does_not_listen_is_reported(two):
    a, b, broken = two()
    b.close()
    a.send("b", (1, 0), [jnp.arange(1000)])
    until = time.monotonic() + 20
    while not broken and time.monotonic() < until:
        time.sleep(0.01)
    assert "the link to b broke" in broken[0]


def test_who_does_not_know_the_secret_is_turned_away(two):
    _, b, _ = two()
    for hello in (b'{"from": "a", "token": "00"}', b'{"from": "a"}', b"nonsense", b""):
        with socket.create_connection(b.address, timeout=20) as s:
            s.sendall(struct.pack("!I", len(hello)) + hello)
            s.shutdown(socket.SHUT_WR)
            assert s.recv(1) == b""
    assert not b.arrival("a", (0, 0)).done.is_set()
