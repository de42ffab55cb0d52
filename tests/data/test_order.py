"""The order of examples is a function of seed and index: exact epochs, exact mixtures, golden values."""

import shutil

import numpy as np
import pytest

from areca.data.build import build_store
from areca.data.order import Order, first_of
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError

T = 16
GOLDEN_PART = [381, 394, 401, 419, 509]


@pytest.fixture(scope="module")
def store(store_path):
    return TokenStore.open(store_path)


class Fake:
    """Just what Order needs of a store: names and sizes, fixed here so that golden values can be."""

    path = "fake"

    class Corpus:
        def __init__(self, name, train_tokens, weight=None):
            self.name, self.train_tokens, self.weight = name, train_tokens, weight

    def __init__(self, *corpora):
        self.corpora = [Fake.Corpus(*c) for c in corpora]

    def corpus(self, name):
        return next(c for c in self.corpora if c.name == name)


GOLDEN = [[0, 391], [0, 341], [1, 156], [0, 117], [0, 77], [1, 492], [0, 32], [0, 978]]  # (corpus, window)
GOLDEN_FAR = [[0, 107], [1, 418]]


def test_golden_indices():
    # From grain 0.2.18. If these change, so does every run: a new grain must not be taken silently.
    order = Order(Fake(("a", 1000 * T + 1), ("b", 500 * T + 1)), T, seed=7)
    assert (order.windows(0, 8) // [1, T]).tolist() == GOLDEN
    assert (order.windows(10**9, 10**9 + 2) // [1, T]).tolist() == GOLDEN_FAR


def test_a_range_is_its_examples_one_by_one(store):
    order = Order(store, T, seed=3)
    whole = order.windows(100, 200)
    assert np.array_equal(whole, np.concatenate([order.windows(i, i + 1) for i in range(100, 200)]))
    assert np.array_equal(whole, Order(store, T, seed=3).windows(100, 200))
    assert whole.dtype == np.int64
    assert order.windows(5, 5).shape == (0, 2)


def test_an_epoch_predicts_every_training_token_once(store):
    order = Order(store, T, seed=1, weights=(("small", 1.0),))
    n = order.windows_per_epoch["small"]
    tokens = store.tokens("small", "train")
    assert n == (len(tokens) - 1) // T
    for epoch in range(3):
        offsets = order.windows(epoch * n, (epoch + 1) * n)[:, 1]
        assert sorted(offsets) == list(range(0, n * T, T))


def test_every_epoch_and_every_seed_has_an_order_of_its_own(store):
    n = Order(store, T, 0, (("small", 1.0),)).windows_per_epoch["small"]
    epochs = {
        (seed, e): tuple(Order(store, T, seed, (("small", 1.0),)).windows(e * n, (e + 1) * n)[:, 1])
        for seed in range(3)
        for e in range(3)
    }
    assert len(set(epochs.values())) == 9


def test_by_default_corpora_are_mixed_by_size():
    order = Order(Fake(("a", 30_001), ("b", 10_001)), 10, 0)
    assert order.weights == pytest.approx({"a": 0.75, "b": 0.25}, abs=1e-4)
    # Both corpora are used up at about the same example: the first epoch repeats nothing.
    first = order.windows(0, 3960)
    assert len({tuple(w) for w in first}) == 3960
    assert order.realised(4000) == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.01)


@pytest.mark.parametrize("shares", [(0.9, 0.1), (0.5, 0.5), (0.01, 0.99), (7.0, 3.0)])
def test_weights_are_kept_at_every_point_of_the_run(store, shares):
    order = Order(store, T, 0, (("big", shares[0]), ("small", shares[1])))
    want = shares[0] / sum(shares)
    from_big = np.cumsum(order.windows(0, 2000)[:, 0] == 0)
    examples = np.arange(1, 2001)
    assert np.all(np.abs(from_big - want * examples) <= 1 + 0.01 * examples)
    assert order.realised(2000)["big"] == pytest.approx(want, abs=0.01)


def test_the_order_of_one_corpus_does_not_depend_on_the_others_weight(store):
    alone = Order(store, T, 5, (("small", 1.0),)).windows(0, 50)[:, 1]
    mixed = Order(store, T, 5, (("big", 1.0), ("small", 3.0))).windows(0, 200)
    assert np.array_equal(mixed[mixed[:, 0] == 1][:50, 1], alone)


def test_weights_given_at_the_build_are_used(tmp_path, text_tree, store_path):
    out = tmp_path / "weighted"
    build_store(out, [f"a={text_tree / 'part0'}:3", f"b={text_tree / 'part1'}:1"], vocab_size=300)
    order = Order(TokenStore.open(out), T, 0)
    assert order.weights == {"a": 0.75, "b": 0.25}
    assert order.realised(400) == pytest.approx({"a": 0.75, "b": 0.25})


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((("big", 0.0),), "must be positive"),
        ((("big", -1.0),), "must be positive"),
        ((("big", float("nan")),), "must be positive"),
        ((("bigg", 1.0),), "did you mean 'big'"),
        ((("big", 1.0), ("big", 2.0)), "twice"),
    ],
)
def test_weights_that_make_no_sense_are_refused(store, weights, message):
    with pytest.raises(ConfigError, match=message):
        Order(store, T, 0, weights)


def test_a_corpus_smaller_than_one_window_is_refused(store):
    with pytest.raises(DataError, match="fewer than one window of 1,000,001"):
        Order(store, 1_000_000, 0)
    with pytest.raises(ConfigError, match="at least 1"):
        Order(store, 0, 0)
    exact = Order(Fake(("a", T + 1)), T, 0)
    assert exact.windows(0, 3)[:, 1].tolist() == [0, 0, 0]


def test_moving_a_store_changes_nothing(store_path, tmp_path):
    shutil.copytree(store_path, tmp_path / "moved")
    a, b = TokenStore.open(store_path), TokenStore.open(tmp_path / "moved")
    assert a.fingerprint == b.fingerprint
    assert np.array_equal(Order(a, T, 0).windows(0, 100), Order(b, T, 0).windows(0, 100))


def test_fractions_are_nested_and_an_epoch_reads_exactly_its_part():
    store = Fake(("a", 1000 * T + 1), ("b", 500 * T + 1))
    seen = []
    for fraction, size in ((0.01, 15), (0.1, 150), (1.0, 1500)):
        order = Order(store, T, seed=7, fraction=fraction)
        assert sum(order.windows_per_epoch.values()) == size
        corpora = order.windows(0, 4 * size)
        seen.append({tuple(w) for w in corpora.tolist()})
        assert len(seen[-1]) == size
        for i, name in enumerate(order.corpora):  # every epoch of a corpus is all of its part, once
            own, count = corpora[corpora[:, 0] == i, 1].tolist(), order.windows_per_epoch[name]
            assert len(set(own[:count])) == count
            assert set(own[:count]) == set(own[count : 2 * count])
            assert fraction == 1.0 or own[:count] != own[count : 2 * count]
    assert seen[0] < seen[1] < seen[2]
    other = Order(store, T, seed=8, fraction=0.1)
    assert {tuple(w) for w in other.windows(0, 600).tolist()} != seen[1]


def test_the_whole_is_the_order_without_a_fraction():
    store = Fake(("a", 1000 * T + 1), ("b", 500 * T + 1))
    assert (Order(store, T, seed=7, fraction=1.0).windows(0, 8) // [1, T]).tolist() == GOLDEN


def test_golden_part():
    # Of numpy's Philox, whose raw output does not change: a run on part of a text stays what it is.
    assert first_of(7, "a", 1000, 5).tolist() == GOLDEN_PART


def test_distinct_tokens_are_at_most_all_there_are():
    order = Order(Fake(("a", 1000 * T + 1), ("b", 500 * T + 1)), T, fraction=0.1)
    assert order.unique_tokens(75 * T) == 75 * T
    assert order.unique_tokens(10_000 * T) == 150 * T


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.01, float("nan")])
def test_a_fraction_that_cannot_be(fraction):
    with pytest.raises(ConfigError, match=r"data\.fraction is .*; it must lie above 0"):
        Order(Fake(("a", 1000 * T + 1)), T, fraction=fraction)
