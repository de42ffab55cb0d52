"""Held-out loss: every held-out token once, the same number whatever the batches."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from areca.config import DataConfig, EvalConfig
from areca.data.store import TokenStore
from areca.files import read_json
from areca.model import decoder
from areca.train.evaluate import Evaluator
from areca.train.loop import train
from tiny import tiny_config


@pytest.fixture(scope="module")
def store(tiny_store):
    return TokenStore.open(tiny_store)


@pytest.fixture(scope="module")
def params():
    config = tiny_config("").model
    return jax.jit(lambda: decoder.init(config, jax.random.key(0)))()


def _evaluate(store, params, **evaluation):
    return Evaluator(tiny_config(store.path, evaluation=EvalConfig(**evaluation)), store, params)(params)


def test_it_is_the_mean_over_every_held_out_token(store, params):
    config = tiny_config(store.path)
    losses = jax.jit(lambda p, t: decoder.losses(config.model, p, t))
    found = _evaluate(store, params, max_tokens=0, batch=4)
    sums, counts = {}, {}
    for corpus in store.corpora:
        tokens = np.asarray(store.tokens(corpus.name, "heldout"), np.int32)
        each = []
        for start in range(0, len(tokens) - 1, 16):  # windows of 16 targets, the last one shorter
            window = np.zeros((1, 17), np.int32)
            piece = tokens[start : start + 17]
            window[0, : len(piece)] = piece
            each += np.asarray(losses(params, window))[0, : len(piece) - 1].tolist()
        assert len(each) == corpus.heldout_tokens - 1
        sums[corpus.name], counts[corpus.name] = sum(each), len(each)
        assert found["by_corpus"][corpus.name] == pytest.approx(np.mean(each), rel=1e-6)
    assert found["tokens"] == sum(counts.values())
    # Weighted by tokens, not by corpus: the corpora are of different sizes.
    assert found["loss"] == pytest.approx(sum(sums.values()) / sum(counts.values()), rel=1e-6)


@pytest.mark.parametrize("max_tokens", [0, 500])
def test_the_evaluation_batch_changes_rounding_only(store, params, max_tokens):
    a, b = (_evaluate(store, params, max_tokens=max_tokens, batch=batch) for batch in (3, 8))
    assert a["tokens"] == b["tokens"]
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-6)


def test_a_limit_reads_each_corpus_by_its_share(store, params):
    limited, whole = (_evaluate(store, params, max_tokens=n, batch=4) for n in (640, 0))
    assert 0.9 * 640 <= limited["tokens"] <= 640
    assert set(limited["by_corpus"]) == set(whole["by_corpus"])
    assert limited["loss"] == pytest.approx(whole["loss"], rel=0.05)


def test_the_training_batch_and_order_do_not_enter(store, params):
    config = tiny_config(store.path)
    one = Evaluator(config, store, params)(params)
    other = replace(config, data=DataConfig(str(store.path), context=16, seed=9, weights=(("small", 1.0),)))
    assert Evaluator(replace(other, batch=replace(config.batch, ramp=((0, 2),))), store, params)(params) == one


def test_the_runs_result_is_that_of_its_last_parameters(tiny_run, store):
    from areca.train.restore import load_model

    model = load_model(tiny_run)
    assert model.step == 12
    assert (
        Evaluator(model.config, store, model.params)(model.params)["loss"]
        == read_json(tiny_run / "result.json")["loss"]
    )


def test_an_evaluation_on_the_way_does_not_change_the_run(tiny_run, tiny_store, tmp_path):
    config = tiny_config(tiny_store)
    config = replace(config, evaluation=replace(config.evaluation, every_tokens=200))
    result = train(config, tmp_path / "run")
    assert result["parameters_sha256"] == read_json(tiny_run / "result.json")["parameters_sha256"]
