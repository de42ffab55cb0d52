"""Threads of the controller: calls in order, and no hung call that holds the end up."""

import threading
import time

import numpy as np
import pytest

from areca.errors import ConfigError, IslandError
from areca.pathways.controller import Controller
from areca.pathways.island import split_devices
from areca.pathways.pool import Pool
from areca.pathways.program import Program


def test_one_thread_keeps_the_order_and_several_run_at_once():
    order, one = [], Pool(1, "one")
    for i in range(50):
        one.submit(order.append, i)
    assert one.close(10)
    assert order == list(range(50))
    both, met = Pool(2, "two"), threading.Barrier(2)
    for _ in range(2):
        both.submit(met.wait, 10)
    assert both.close(10)
    assert not met.broken


def test_a_call_that_hangs_does_not_hold_the_end_up():
    gate, pool = threading.Event(), Pool(1, "stuck")
    pool.submit(gate.wait)
    started = time.monotonic()
    assert not pool.close(0.2)
    assert time.monotonic() - started < 5
    gate.set()


def test_a_controller_with_a_stuck_host_function_ends_within_its_deadline_and_says_so():
    gate, island = threading.Event(), split_devices(1)[0]
    controller = Controller([island], deadline=0.5)
    client = controller.client("a")
    client.submit(client.trace(lambda g: g.host(gate.wait)))
    started = time.monotonic()
    with pytest.raises(IslandError, match="the controller did not end: a host function has not answered"):
        controller.close()
    assert time.monotonic() - started < 5
    gate.set()


def test_nothing_is_submitted_to_a_closed_controller():
    islands = split_devices(1)
    double = Program("double", lambda x: 2 * x, [np.float32(1)])
    with Controller(islands) as controller:
        client = controller.client("a")
        x = client.put(np.float32(1), islands)
    with pytest.raises(ConfigError, match=r"input 0 of graph .* is a ndarray and not a future; .* `client.put`"):
        client.submit(client.trace(lambda g, v: g.call(double, v), x), np.ones(1))
    with pytest.raises(ConfigError, match="graph double is submitted to a controller that is closed; make another"):
        client.call(double, x)
