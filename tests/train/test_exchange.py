"""What islands exchange: rounding, the order of sums, chunks, and the fingerprint of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from areca.config import ModelConfig
from areca.errors import ConfigError
from areca.model import decoder
from areca.model.layout import Layout
from areca.train.islands.exchange import digest, shard_size, sum_shards, to_wire

DIGEST = jax.jit(digest)


def _trees(count, seed=0):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-6, 6, 500)
    return [{"a": (rng.standard_normal(500) * scales).astype(np.float32), "b": [np.float32(i)]} for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_the_sum_of_shards_is_numpys_left_fold_to_the_bit(count):
    shards = _trees(count)
    expected = shards[0]["a"]
    for shard in shards[1:]:
        expected = expected + shard["a"]
    found = jax.jit(sum_shards)(shards)
    assert np.asarray(found["a"]).tobytes() == (expected * (np.float32(1) / np.float32(count))).tobytes()
    assert float(found["b"][0]) == pytest.approx((count - 1) / 2)
    if count > 2:  # the order is seen
        assert np.asarray(jax.jit(sum_shards)(shards[::-1])["a"]).tobytes() != np.asarray(found["a"]).tobytes()


def test_bfloat16_rounds_every_shard_to_nearest_even_also_in_the_program_that_sums():
    # bfloat16 keeps the upper 16 bits: rounded by hand.
    values = _trees(3)
    bits = [v["a"].view(np.uint32).astype(np.uint64) for v in values]
    rounded = [((b + 0x7FFF + ((b >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32) for b in bits]
    for value, expected in zip(values, rounded, strict=True):
        sent = to_wire(value, "bfloat16")["a"]
        assert sent.dtype == jnp.bfloat16
        assert np.asarray(sent.astype(jnp.float32)).tobytes() == expected.tobytes()
    together = jax.jit(lambda shards: sum_shards([to_wire(s, "bfloat16") for s in shards]))(values)["a"]
    third = np.float32(1) / np.float32(3)
    assert np.asarray(together).tobytes() == (((rounded[0] + rounded[1]) + rounded[2]) * third).tobytes()


def test_float32_travels_as_it_is():
    value = _trees(1)[0]
    assert np.asarray(to_wire(value, "float32")["a"]).tobytes() == value["a"].tobytes()


def test_another_wire_and_uneven_shards_are_refused():
    with pytest.raises(ConfigError, match="the wire's type is 'int8'; choose one of 'bfloat16', 'float32'"):
        to_wire({}, "int8")  # pyright: ignore[reportArgumentType]
    assert shard_size(12, 4) == 3
    for shards in (0, 5, 24):
        with pytest.raises(ConfigError, match=f"islands.shards is {shards}, which does not cut a batch of 12"):
            shard_size(12, shards)


# --- chunks


# --- the fingerprint


def _leaves():
    rng = np.random.default_rng(3)
    return {"a": rng.standard_normal((7, 5)).astype(np.float32), "b": rng.standard_normal(9).astype(np.float32)}


def _seen(tree) -> tuple[int, ...]:
    return tuple(map(int, DIGEST(tree)))


def test_one_flipped_bit_changes_both_halves_of_the_digest():
    tree = _leaves()
    before, seen = _seen(tree), set()
    for name, leaf in tree.items():
        for i in range(leaf.size):
            for bit in range(0, 32, 3) if i else range(32):
                bits = leaf.view(np.uint32).copy()
                bits.reshape(-1)[i] ^= np.uint32(1 << bit)
                after = _seen(tree | {name: bits.view(np.float32)})
                assert after[0] != before[0]
                assert after[1] != before[1]
                seen.add(after)
    assert len(seen) == 2 * 32 + 42 * 11  # and no two alike


def test_the_digest_sees_order_signs_and_zeros():
    tree = _leaves()
    a = tree["a"]
    others = [
        tree | {"a": a[::-1]},
        tree | {"a": a[:, ::-1]},
        tree | {"a": np.where(np.arange(5) < 2, -a, a)},  # an even number of highest bits
        tree | {"a": -a},
        {"a": tree["b"], "b": a},
        tree | {"a": np.zeros_like(a)},
        tree | {"a": -np.zeros_like(a)},
        tree | {"a": np.full_like(a, np.nan)},
    ]
    found = [_seen(t) for t in (tree, *others)]
    assert len(set(found)) == len(found)
    assert _seen(jax.tree.map(np.copy, tree)) == found[0]


def test_the_digest_of_parameters_is_the_same_on_every_mesh():
    model = ModelConfig(vocab_size=31, d_model=8, n_layers=2, n_heads=2, d_ff=16)
    rng = np.random.default_rng(4)
    shapes = jax.eval_shape(lambda: decoder.init(model, jax.random.key(1)))
    params = jax.tree.map(lambda a: rng.standard_normal(a.shape).astype(np.float32), shapes)
    expected = _seen(params)
    for sizes, first in (((2, 2), 0), ((2, 2), 4), ((1, 2), 3)):
        layout = Layout(*sizes)
        mesh = layout.mesh(jax.devices()[first:])
        lies = layout.shardings(params, mesh)
        on_mesh = jax.jit(digest, in_shardings=(lies,), out_shardings=NamedSharding(mesh, P()))
        assert tuple(map(int, on_mesh(jax.device_put(params, lies)))) == expected
