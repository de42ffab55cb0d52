"""Batches are windows of the store; held-out evaluation counts every token once, whatever the batch."""

import shutil
import threading

import numpy as np
import pytest

from areca.config import DataConfig
from areca.data.batches import Batches, heldout
from areca.data.samples import samples
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError

T = 16


@pytest.fixture(scope="module")
def store(store_path):
    return TokenStore.open(store_path)


@pytest.fixture(scope="module")
def batches(store, store_path):
    return Batches(store, DataConfig(str(store_path), context=T, seed=2))


def test_a_batch_holds_the_windows_of_its_examples(store, batches):
    got = batches.get(40, 12)
    assert got.dtype == np.int32
    assert got.shape == (12, T + 1)
    for row, (corpus, offset) in zip(got, batches.order.windows(40, 52), strict=True):
        assert np.array_equal(row, store.tokens(["big", "small"][corpus], "train")[offset : offset + T + 1])


def test_examples_do_not_depend_on_the_batch(batches):
    whole = batches.get(0, 24)
    assert np.array_equal(whole, np.concatenate([batches.get(0, 5), batches.get(5, 1), batches.get(6, 18)]))


def test_the_background_iterator_gives_the_plan_in_order_and_ends_its_thread(batches):
    before = threading.active_count()
    plan = [(0, 4), (4, 4), (100, 8), (8, 2)]
    got = list(batches.iterate(plan))
    assert all(np.array_equal(g, batches.get(*p)) for g, p in zip(got, plan, strict=True))
    endless = batches.iterate((i, 1) for i in range(10**9))
    assert np.array_equal(next(endless), batches.get(0, 1))
    endless.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_a_token_beyond_the_vocabulary_is_refused_by_the_name_of_its_file(store_path, tmp_path, split):
    """Files of a local store may be damaged without another size; without a check, such tokens train to NaN."""
    shutil.copytree(store_path, tmp_path / "store")
    damaged = TokenStore.open(tmp_path / "store")
    file = tmp_path / "store" / f"small.{split}.bin"
    tokens = np.memmap(file, dtype=damaged.dtype, mode="r+")
    tokens[T // 2] = damaged.vocab_size  # the first that can't be
    tokens.flush()
    opened = TokenStore.open(tmp_path / "store")
    batches = Batches(opened, DataConfig(str(opened.path), context=T, weights=(("small", 1.0),)))

    def read():
        batches.get(0, batches.order.windows_per_epoch["small"])  # an epoch has every window
        list(heldout(opened, T, 4))
        samples(opened, 10**6)

    says = rf"small\.{split}\.bin is damaged: .* {opened.vocab_size:,}.*show .* --verify"
    with pytest.raises(DataError, match=says):
        read()
    if split == "heldout":
        with pytest.raises(DataError, match=says):
            samples(opened, 10**6)
    tokens[T // 2] = damaged.vocab_size - 1
    tokens.flush()
    read()


def test_an_error_of_the_background_thread_reaches_the_consumer(batches):
    stream = batches.iterate([(0, 2), (-5, 2)])
    next(stream)
    with pytest.raises(ConfigError, match="no range"):
        next(stream)


def test_a_batch_larger_than_the_corpus_is_refused(batches):
    with pytest.raises(DataError, match="larger than"):
        batches.get(0, 10**6)


def test_held_out_windows_predict_every_token_but_the_first_once(store):
    for corpus in ("big", "small"):
        tokens = store.tokens(corpus, "heldout")
        targets = [t[:, 1:][w > 0] for t, w in heldout(store, T, 4, corpus=corpus)]
        assert np.array_equal(np.concatenate(targets), tokens[1:])
        inputs = [t[:, :-1][w > 0] for t, w in heldout(store, T, 4, corpus=corpus)]
        assert np.array_equal(np.concatenate(inputs), tokens[:-1])


def test_held_out_windows_go_through_all_corpora_without_a_gap(store):
    targets = [t[:, 1:][w > 0] for t, w in heldout(store, T, 4)]
    want = [store.tokens(c.name, "heldout")[1:] for c in store.corpora]
    assert np.array_equal(np.concatenate(targets), np.concatenate(want))


@pytest.mark.parametrize("limit", [0, 20 * T, 1])
def test_held_out_tokens_do_not_depend_on_the_batch(store, limit):
    def targets(batch: int) -> np.ndarray:
        parts = list(heldout(store, T, batch, limit))
        assert {t.shape for t, _ in parts} == {(batch, T + 1)}
        assert {w.shape for _, w in parts} == {(batch, T)}
        assert all(t.dtype == np.int32 and w.dtype == np.float32 for t, w in parts)
        return np.concatenate([t[:, 1:][w > 0] for t, w in parts])

    assert np.array_equal(targets(1), targets(7))
    assert np.array_equal(targets(1), targets(64))


def test_limited_held_out_tokens_are_spread_evenly_over_the_corpora(store):
    sizes = {c.name: c.heldout_tokens for c in store.corpora}
    limit = sum(sizes.values()) // 2
    rows = np.concatenate([t[w[:, 0] > 0] for t, w in heldout(store, T, 8, limit)])
    assert len(rows) == limit // T
    big = store.tokens("big", "heldout")
    windows = {tuple(big[o : o + T + 1].tolist()) for o in range(0, len(big) - T, T)}
    share = np.mean([tuple(r.tolist()) in windows for r in rows])
    assert share == pytest.approx(sizes["big"] / sum(sizes.values()), abs=0.02)


def test_the_padding_is_eod_of_weight_zero(store):
    tokens, weight = list(heldout(store, T, 64, corpus="small"))[-1]
    assert np.all(tokens[:, 1:][weight == 0] == store.eod_id)
    assert set(np.unique(weight)) == {0.0, 1.0}


def test_no_held_out_tokens_and_impossible_sizes_are_refused(store):
    with pytest.raises(DataError, match="no corpus 'none'"):
        next(heldout(store, T, 4, corpus="none"))
    with pytest.raises(ConfigError, match="at least 1"):
        next(heldout(store, 0, 4))
