"""Products and attention of our own against float64, on every kind of processor that a text is written for."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ConfigError
from areca.kernels import attention, compiled, product, threshold
from areca.kernels.machine import Machine, llvm, this_machine
from areca.model import sampling

# Texts for narrower vectors run on wider processors too; a text without fused instructions runs everywhere.
KINDS = [
    Machine(width=8, registers=16, fused=False),
    Machine(width=4, registers=32, fused=False),
    Machine(width=4, registers=16, fused=False),
]
if this_machine().fused:
    KINDS += [Machine(width=w, registers=r, fused=True) for w, r in ((8, 16), (4, 32)) if w <= this_machine().width]


def _drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _product(x: np.ndarray, w: np.ndarray, rows: int | None = None) -> np.ndarray:
    count = None if rows is None else np.int32(rows)
    return np.asarray(jax.jit(lambda x, w: product.product(x, product.pack(w), count))(x, w))


@pytest.fixture(params=[this_machine(), *KINDS], ids=lambda machine: machine.name)
def machine(request, monkeypatch) -> Machine:
    for module in (product, attention, threshold):
        monkeypatch.setattr(module, "this_machine", lambda: request.param)
    return request.param


def test_products_are_those_of_float64(machine):
    for M, K, N in ((1, 1, 1), (3, 5, 49), (8, 513, 48), (17, 1025, 100), (40, 64, 7)):
        x, w = _drawn(M, K), _drawn(K, N, seed=1)
        exact = x.astype(np.float64) @ w
        np.testing.assert_allclose(_product(x, w), exact, rtol=0, atol=2e-6 * math.sqrt(K) * np.abs(exact).max())


def test_a_row_has_the_same_bits_in_any_company_and_by_any_number_of_threads(machine):
    x, w = _drawn(37, 700), _drawn(700, 900, seed=1)  # 37 rows are worth several threads, one of 96 columns is not
    whole = _product(x, w)
    for M in range(1, 19):
        assert (_product(x[:M], w) == whole[:M]).all()
    assert (_product(x[36:], w) == whole[36:]).all()
    assert (_product(x[5:6], w[:, :96]) == whole[5:6, :96]).all()


def test_rows_that_are_not_asked_for_are_zeros(machine):
    x, w = _drawn(11, 30), _drawn(30, 70, seed=1)
    for rows in (0, 1, 8, 10, 11, 12):
        got = _product(x, w, rows)
        assert (got[:rows] == _product(x, w)[:rows]).all()
        assert not got[rows:].any()


def test_a_part_of_the_columns_has_the_same_bits(machine):
    x, w = _drawn(5, 30), product.pack(jnp.asarray(_drawn(30, 200, seed=1)))
    whole = np.asarray(product.product(x, w))
    for first, last in ((0, 200), (0, 1), (47, 49), (100, 160), (199, 200)):
        panels, columns = w.part(first, last)
        assert (np.asarray(product.product(x, panels))[:, columns] == whole[:, first:last]).all()


def test_what_is_no_number_stays_in_its_row_or_column(machine):
    x, w = _drawn(9, 20), _drawn(20, 60, seed=1)
    x[4, 3], w[7, 50] = np.nan, np.inf
    got = _product(x, w)
    wrong = ~np.isfinite(got)
    assert np.isnan(got[4]).all()
    assert wrong[:, 50].all()
    wrong[4], wrong[:, 50] = False, False
    assert not wrong.any()


SHAPES = [(3, 50, 1, 6, 64), (2, 40, 2, 5, 12), (2, 21, 3, 1, 80), (1, 16, 1, 20, 64), (2, 40, 3, 2, 7)]  # B S G X K


def _attend(q, k, v, position, lanes=None) -> np.ndarray:
    return np.asarray(jax.jit(attention.attend)(q, k, v, np.asarray(position, np.int32), lanes))


def _exact(q, k, v, position) -> np.ndarray:
    B, H, K = q.shape
    S, G = k.shape[1:3]
    score = np.einsum("bgxk,bsgk->bgxs", q.reshape(B, G, -1, K).astype(np.float64), k) / math.sqrt(K)
    score[np.broadcast_to(np.arange(S) > np.asarray(position)[:, None, None, None], score.shape)] = -np.inf
    p = np.exp(score - score.max(-1, keepdims=True))
    return np.einsum("bgxs,bsgk->bgxk", p / p.sum(-1, keepdims=True), v.astype(np.float64)).reshape(B, H, K)


def _problem(B: int, S: int, G: int, X: int, K: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return 2 * _drawn(B, G * X, K), _drawn(B, S, G, K, seed=1), _drawn(B, S, G, K, seed=2)


def test_attention_is_that_of_float64(machine):
    for shape in SHAPES[:3] if machine in KINDS else SHAPES:
        q, k, v = _problem(*shape)
        for last in {0, 15, shape[1] - 1}:
            position = np.minimum([last, 7, 0][: shape[0]], shape[1] - 1)
            np.testing.assert_allclose(_attend(q, k, v, position), _exact(q, k, v, position), rtol=0, atol=3e-6)


def test_attention_has_the_same_bits_whatever_the_cache_is_long_and_holds_beyond_the_position():
    q, k, v = _problem(16, 300, 1, 6, 64)  # worth several threads; one lane of 20 positions is not
    position = np.arange(16) + 3
    whole = _attend(q, k, v, position)
    k[:, 20:], v[:, 20:] = np.nan, np.inf
    assert (_attend(q, k, v, position) == whole).all()
    assert (_attend(q[:, :], k[:, :20], v[:, :20], position) == whole).all()
    assert (_attend(q[7:8], k[7:8, :20], v[7:8, :20], position[7:8]) == whole[7:8]).all()


def test_attention_of_lanes_without_a_text_is_zeros_and_no_position_reads_beyond_the_cache():
    q, k, v = _problem(4, 30, 2, 3, 16)
    some = _attend(q, k, v, [5, 29, 8, 9], np.int32(2))
    assert (some[:2] == _attend(q, k, v, [5, 29, 8, 9])[:2]).all()
    assert not some[2:].any()
    for beyond in (30, 31, 2**31 - 1, -5):
        assert (_attend(q, k, v, [5, 29, beyond, 9])[[0, 1, 3]] == _attend(q, k, v, [5, 29, 8, 9])[[0, 1, 3]]).all()
    assert (_attend(q, k, v, [5, 29, 30, 9])[2] == _attend(q, k, v, [5, 29, 29, 9])[2]).all()


def test_attention_of_scores_far_apart_and_of_what_is_no_number():
    q, k, v = _problem(2, 24, 1, 2, 16)
    far = 1e4 * q
    np.testing.assert_allclose(_attend(far, k, v, [23, 23]), _exact(far, k, v, [23, 23]), rtol=1e-5, atol=1e-5)
    q[0, 1, 2] = np.nan
    got = _attend(q, k, v, [23, 23])
    assert np.isnan(got[0, 1]).all()
    assert np.isfinite(got[0, 0]).all()
    assert np.isfinite(got[1]).all()


def test_exp_is_within_two_units_in_the_last_place():
    """By attention over two positions with values 0 and 1: p = e / (1 + e), so e = p / (1 - p), for small e."""
    x = -np.linspace(2, 86, 500, dtype=np.float32)
    q = np.tile(np.float32([[[1.0]]]), (500, 1, 1))
    k = np.stack([np.zeros(500, np.float32), x], 1)[:, :, None, None]
    v = np.tile(np.float32([0, 1])[None, :, None, None], (500, 1, 1, 1))
    got = _attend(q, k, v, np.ones(500))[:, 0, 0].astype(np.float64)
    e = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(got, e / (1 + e), rtol=4e-7)
    assert _attend(q[:1], np.float32([0, -88])[None, :, None, None], v[:1], [1])[0, 0, 0] == 0


def test_a_threshold_keeps_the_fewest_highest_with_the_wanted_weight(machine):
    rng = np.random.default_rng(0)
    score = np.concatenate(
        [_drawn(6, 77), np.float32([[-np.inf] * 76 + [3.0], [0.0] * 77, [-1e30, 1e30, -0.0] * 25 + [5, 5]])]
    )
    weight = rng.random(score.shape).astype(np.float32)
    find = jax.jit(threshold.threshold)
    for share in (0.01, 0.3, 0.999, 1.0):
        for w in (None, weight):
            each = np.ones_like(score) if w is None else w
            wanted = (
                np.ceil(77 * np.float32(share)) * np.ones(9, np.float32) if w is None else share * each.sum(1) * 0.999
            )
            wanted[3] = -1
            low = np.asarray(find(score, w, wanted))
            for row, (s, each_w) in enumerate(zip(score, each, strict=True)):
                kept = s >= low[row]
                if row == 3:
                    assert kept.all()
                    continue
                assert each_w[kept].sum() >= wanted[row] * (1 - 1e-6)
                least = kept & (s > s[kept].min())  # without those that equal the last
                assert each_w[least].sum() < wanted[row]


def test_a_threshold_is_that_of_any_device(machine):
    score, weight = 3 * _drawn(20, 8192), np.random.default_rng(1).random((20, 8192)).astype(np.float32)
    counts = (np.arange(20, dtype=np.float32) + 1) ** 3
    for w, wanted in ((None, counts), (weight, counts / 10)):
        ours, any_device = (jax.jit(f)(score, w, wanted) for f in (threshold.threshold, sampling._threshold))
        others = (score >= np.asarray(ours)[:, None]) != (score >= np.asarray(any_device)[:, None])
        assert others.sum() <= (0 if w is None else 1)  # sums in another order


def test_many_calls_at_once_have_the_same_bits():
    x, w = _drawn(16, 384), product.pack(jnp.asarray(_drawn(384, 2000, seed=1)))
    call = jax.jit(product.product)
    expected = np.asarray(call(x, w))
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: np.asarray(call(x, w)), range(400)):
            assert (got == expected).all()


def test_a_kernel_that_cannot_be_made_is_one_sentence_with_the_way_out():
    with pytest.raises(ConfigError, match=r"^the kernel nothing could not be made .*ARECA_KERNELS=0.*last bits\.$"):
        compiled.target("nothing", "define void @nothing(")


def test_without_llvm_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with pytest.raises(ConfigError, match=r"^LLVM can't be loaded .*install llvmlite.*ARECA_KERNELS=0"):
        llvm()


def test_kernels_are_for_float32_on_one_device_of_the_processor(monkeypatch):
    one, several = jax.devices()[:1], jax.devices()[:2]
    spread = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",), devices=several), jax.P())
    assert compiled.usable(jax.device_put(jnp.zeros(4), one[0]))
    assert not compiled.usable(jax.device_put(jnp.zeros(4), spread))
    assert not compiled.usable(jnp.zeros(4, jnp.bfloat16))
    monkeypatch.setenv("ARECA_KERNELS", "0")
    assert not compiled.usable(jax.device_put(jnp.zeros(4), one[0]))
