"""Scores of given continuations against the logits of each text alone, and what they are by definition."""

import itertools
import math

import jax
import numpy as np
import pytest
import scipy.special

from areca.errors import ConfigError
from areca.model import decoder
from areca.model.config import ModelConfig
from areca.model.lanes import generate
from areca.model.sampling import Sampling
from areca.model.scores import scores

CONFIG = ModelConfig(vocab_size=23, d_model=12, n_layers=2, n_heads=3, d_ff=20, rope_theta=50.0).resolved()
CONTEXT = 48


@pytest.fixture(scope="module")
def params() -> decoder.Decoder:
    return jax.jit(lambda: decoder.init(CONFIG, jax.random.key(5)))()


def _text(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, length).tolist()


def test_scores_are_those_of_each_text_alone(params):
    texts = [(_text(n, n), _text(m, m + 100)) for n, m in ((1, 1), (3, 9), (20, 2), (30, 18), (1, 47), (5, 0))]
    found = scores(CONFIG, params, texts, context=CONTEXT)
    logits = jax.jit(lambda ids: decoder.logits(CONFIG, params, ids))
    for (before, after), got in zip(texts, found, strict=True):
        ids = np.array([*before, *after])
        padded = np.zeros((1, CONTEXT + 1), np.int32)
        padded[0, : len(ids)] = ids
        row = scipy.special.log_softmax(np.asarray(logits(padded))[0], axis=-1)
        at = range(len(before) - 1, len(ids) - 1)
        np.testing.assert_allclose(got.tokens, [row[i, ids[i + 1]] for i in at], atol=1e-5)
        assert got.greedy == [int(row[i].argmax()) == ids[i + 1] for i in at]
        assert got.total == pytest.approx(sum(got.tokens))


def test_probabilities_of_all_continuations_add_up_to_one(params):
    pairs = [([4, 2], list(pair)) for pair in itertools.product(range(CONFIG.vocab_size), repeat=2)]
    assert sum(math.exp(s.total) for s in scores(CONFIG, params, pairs, context=CONTEXT)) == pytest.approx(1, abs=1e-4)


def test_greedy_text_is_greedy_to_its_scores(params):
    prompt = _text(6, 1)
    [text] = generate(CONFIG, params, [prompt], tokens=20, context=CONTEXT, sampling=Sampling(0.0))
    [found] = scores(CONFIG, params, [(prompt, text)], context=CONTEXT)
    assert all(found.greedy)


def test_a_long_context_loses_its_beginning(params):
    before, after = _text(200, 1), _text(8, 2)
    kept = before[-(CONTEXT + 1 - len(after)) :]
    long, short = scores(CONFIG, params, [(before, after), (kept, after)], context=CONTEXT)
    assert long == short


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (([], [1]), "a context has no tokens"),
        (([1], [1] * 49), "a continuation is 49 tokens long and the model was trained on 48"),
        (([1], [23]), "outside of the model's vocabulary of 23"),
        (([-1], [2]), "outside of the model's vocabulary of 23"),
    ],
)
def test_what_has_no_score_is_said(params, text, says):
    with pytest.raises(ConfigError, match=says):
        scores(CONFIG, params, [text], context=CONTEXT)
