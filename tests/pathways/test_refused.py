"""What a client is refused, by name, before anything is dispatched."""

import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ConfigError
from areca.pathways.controller import Controller
from areca.pathways.island import split_devices
from areca.pathways.program import Program

X = jnp.arange(8, dtype=jnp.float32)
SUM = Program("sum", lambda a, b: a + b, [X, X], donates=[0])
DOUBLE = Program("double", lambda a: a * 2, [X])


@pytest.fixture
def controller():
    with Controller(split_devices(2)) as controller:
        yield controller


@pytest.fixture
def client(controller):
    return controller.client("mine")


def test_a_value_on_no_island(client):
    with pytest.raises(ConfigError, match="input is put on no island; name at least one"):
        client.put(X, [])


def test_a_value_given_twice_to_who_takes_its_memory(controller, client):
    x, y = (client.put(np.asarray(X), controller.islands) for _ in range(2))
    with pytest.raises(ConfigError, match="sum is given what input gave twice, and takes the memory of input 0"):
        client.trace(lambda g, v: g.call(SUM, v, v), x)
    with pytest.raises(ConfigError, match="graph sum is given one value as inputs 0 and 1"):
        client.call(SUM, x, x)
    graph = client.trace(lambda g, a, b: g.call(SUM, a, b), x, y, name="both")
    with pytest.raises(
        ConfigError, match="graph both is given one value as inputs 0 and 1, and its memory goes to sum"
    ):
        client.submit(graph, x, x)
    np.testing.assert_array_equal(client.submit(graph, x, y)[0].result(), X + X)


@pytest.mark.parametrize("count", [1, 2])
def test_an_array_that_was_put_stays_the_callers(controller, client, count):
    mine = jnp.arange(8, dtype=jnp.float32)
    islands = controller.islands[:count]
    x, y = client.put(mine, islands), client.put(mine, islands)
    np.testing.assert_array_equal(client.call(SUM, x, y).result(), X + X)
    made = client.trace(lambda g: g.host(lambda: mine, outputs=mine, to=islands))
    (z,) = client.submit(made)
    np.testing.assert_array_equal(client.call(SUM, z, y).result(), X + X)
    np.testing.assert_array_equal(mine, X)


def test_a_value_that_is_not_as_traced_is_described_beside_what_is(controller, client):
    both = client.put(X, controller.islands)
    graph = client.trace(lambda g, v: g.call(DOUBLE, v), both, name="doubled")
    traced = r"input 0 of graph doubled was traced as float32\[8\] on island 0 and island 1, and what input gave has "
    with pytest.raises(ConfigError, match=traced + r"float32\[9\] on island 0 and island 1"):
        client.submit(graph, client.put(jnp.zeros(9), controller.islands))
    with pytest.raises(ConfigError, match=traced + r"float32\[8\] on island 0; trace"):
        client.submit(graph, client.put(X, controller.islands[:1]))
    with pytest.raises(ConfigError, match="has another tree or is cut otherwise"):
        client.submit(graph, client.put([X], controller.islands))
    np.testing.assert_array_equal(client.submit(graph, both)[0].result(), X * 2)


def test_clients_and_controllers_that_are_closed(controller, client):
    client.close()
    with pytest.raises(ConfigError, match="client mine is closed"):
        client.put(X, controller.islands)
    other = controller.client("other")
    controller.close()
    with pytest.raises(ConfigError, match="client third is opened on a controller that is closed"):
        controller.client("third")
    with pytest.raises(ConfigError, match="closed; make another"):
        other.call(DOUBLE, other.put(X, controller.islands))


@pytest.mark.parametrize("weight", ["x", None, 0, -1, float("nan"), float("inf")])
def test_a_weight_that_is_no_positive_number(controller, weight):
    with pytest.raises(ConfigError, match=r"the weight of client w is .*; it must be a positive number"):
        controller.client("w", weight)
