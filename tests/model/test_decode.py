"""Decoding with a cache against reading the whole text anew for every token, and the draws."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ConfigError
from areca.model import decode, decoder
from areca.model import lanes as running
from areca.model.config import ModelConfig
from areca.model.lanes import Batch, Entry, bucket, generate
from areca.model.prepared import prepare
from areca.model.sampling import Sampling, Settings, pick

CONFIG = ModelConfig(vocab_size=41, d_model=12, n_layers=2, n_heads=3, d_ff=20, rope_theta=50.0).resolved()
CONTEXT = 16
GREEDY = Sampling(temperature=0)
_logits = jax.jit(lambda p, t: decoder.logits(CONFIG, p, t))


@pytest.fixture(scope="module")
def params() -> decoder.Decoder:
    drawn = jax.jit(lambda: decoder.init(CONFIG, jax.random.key(5)))()
    # Larger kernels: with shared embeddings an untrained model would only repeat the last token.
    return replace(drawn, layers=jax.tree.map(lambda a: 3 * a, drawn.layers))


def _text(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, length).tolist()


def _uncached(params, window: list[int]) -> np.ndarray:
    """Logits after each token of `window`, at most CONTEXT long, padded on the right (which causality hides)."""
    padded = np.zeros((1, CONTEXT), np.int32)
    padded[0, : len(window)] = window
    return np.asarray(_logits(params, padded))[0, : len(window)]


def _check_cached(config, params, length: tuple[int, int]) -> None:
    """Every logit of a text read token by token against that of the whole text; the rows begin at `length`."""
    text = np.array([_text(CONTEXT, 1), _text(CONTEXT, 2)], np.int32)
    expected = np.asarray(jax.jit(lambda p, t: decoder.logits(config, p, t))(params, text))
    weights = prepare(config, params, config.vocab_size)
    read = jax.jit(
        lambda cache, token, at: decode._read(
            config, weights, cache, token, at, decoder.angles_at(config, CONTEXT), jnp.int32(2)
        )
    )
    cache = decode.empty_cache(config, 2, CONTEXT)
    assert cache.key[0].shape == (2, CONTEXT, config.n_kv_heads, config.head_dim)
    assert decode.cache_bytes(config, 2, CONTEXT) == sum(a.nbytes for a in jax.tree.leaves(cache))
    # The padding of prefill is other tokens of the text, which must not be read.
    for row, n in enumerate(length):
        padded = np.roll(text[row], 5)
        padded[:n] = text[row, :n]
        cache = decode.place(cache, decode.prefill(config, weights, padded), np.int32(row))
    at = np.array(length, np.int32)
    while max(at) < CONTEXT:
        logits, cache = read(cache, text[[0, 1], at], at)
        for row, n in enumerate(at):
            np.testing.assert_allclose(logits[row], expected[row, n], atol=1e-5)
        at = at + 1  # a new array: jax may still be reading the old one


def _noisy(config: ModelConfig) -> decoder.Decoder:
    """Parameters none of which are zeros or ones, as biases and norms are at first."""

    def draw() -> decoder.Decoder:
        drawn, rng = decoder.init(config, jax.random.key(5)), np.random.default_rng(0)
        return jax.tree.map(lambda a: a + 0.1 * rng.standard_normal(a.shape).astype(np.float32), drawn)

    return jax.jit(draw)()


@pytest.fixture(params=["1", "0"], ids=["ours", "XLA's"])
def kernels(request, monkeypatch) -> None:
    monkeypatch.setenv("ARECA_KERNELS", request.param)


@pytest.mark.usefixtures("kernels")
def test_cached_logits_are_those_of_the_whole_text_at_every_position(params):
    _check_cached(CONFIG, params, (3, 7))


@pytest.mark.usefixtures("kernels")
def test_cached_logits_of_every_other_choice_are_those_of_the_whole_text():
    config = replace(
        CONFIG, n_heads=4, head_dim=4, n_kv_heads=2, block="serial", mlp="gelu", positions="learned",
        n_positions=CONTEXT, tied=False, biases=True, base_width=6,
    ).resolved()  # fmt: skip
    _check_cached(config, _noisy(config), (3, 7))


@pytest.mark.usefixtures("kernels")
def test_cached_logits_of_biases_in_a_parallel_block_are_those_of_the_whole_text():
    config = replace(CONFIG, biases=True)
    _check_cached(config, _noisy(config), (9, 2))


@pytest.mark.usefixtures("kernels")
def test_greedy_text_is_that_of_decoding_without_a_cache(params):
    prompt = _text(5)
    expected = list(prompt)
    while len(expected) < CONTEXT:
        expected.append(int(_uncached(params, expected)[-1].argmax()))
    new = generate(CONFIG, params, [prompt], tokens=CONTEXT - 5, context=CONTEXT, sampling=GREEDY)
    assert prompt + new[0] == expected
    assert len(set(new[0])) > 2


def test_text_beyond_the_context_goes_on_from_its_last_half(params):
    prompt = _text(5)
    window, expected = list(prompt), []
    for _ in range(40):
        if len(window) > CONTEXT:
            window = window[-CONTEXT // 2 :]
        expected.append(int(_uncached(params, window)[-1].argmax()))
        window.append(expected[-1])
    assert generate(CONFIG, params, [prompt], tokens=40, context=CONTEXT, sampling=GREEDY) == [expected]


def test_prompts_of_different_lengths_are_as_alone(params):
    prompts = [_text(2, 3), _text(11, 4), _text(6, 5)]
    together = generate(CONFIG, params, prompts, tokens=20, context=CONTEXT, sampling=GREEDY)
    alone = [generate(CONFIG, params, [p], tokens=20, context=CONTEXT, sampling=GREEDY)[0] for p in prompts]
    assert together == alone


def test_a_draw_depends_on_the_seed_the_text_and_the_position_alone(params):
    def draw(prompts, seed=0, tokens=12):
        return generate(CONFIG, params, prompts, tokens=tokens, context=CONTEXT, seed=seed, sampling=Sampling(1.0, 0))

    a, b = _text(4, 6), _text(4, 7)
    assert draw([a, b]) == draw([a, b])
    assert draw([a, b])[0] == draw([a])[0] == draw([a, a])[0]
    assert draw([a], tokens=5)[0] == draw([a])[0][:5]
    assert draw([a], seed=1) != draw([a])
    twice = draw([a, a])
    assert twice[0] != twice[1]  # continuations of one prompt differ


def test_the_stop_token_ends_a_text_and_only_that_one(params):
    prompts = [_text(4, 8), _text(4, 9)]
    free = generate(CONFIG, params, prompts, tokens=10, context=CONTEXT, sampling=GREEDY)
    stop = next(t for t in free[0] if t not in free[1])
    ended = generate(CONFIG, params, prompts, tokens=10, context=CONTEXT, sampling=GREEDY, stop=stop)
    assert ended[0] == free[0][: free[0].index(stop) + 1]
    assert ended[1] == free[1]


def test_ids_past_the_vocabulary_are_never_drawn(params):
    drawn = generate(CONFIG, params, [[1, 2]] * 8, tokens=20, context=CONTEXT, sampling=Sampling(5.0, 0), vocabulary=7)
    assert set(np.ravel(drawn)) == set(range(7))


PROBABILITY = np.array([0.05, 0.4, 0.1, 0.3, 0.15])


def _settings(each: list[Sampling]) -> Settings:
    return Settings(
        np.array([s.temperature for s in each], np.float32),
        np.array([s.top_k for s in each], np.int32),
        np.array([s.top_p for s in each], np.float32),
    )


def _frequencies(sampling: Sampling, ours: bool, draws: int = 20_000) -> np.ndarray:
    logits = jnp.tile(jnp.log(jnp.asarray(PROBABILITY, jnp.float32))[None], (draws, 1))
    keys = jax.random.split(jax.random.key(11), draws)
    tokens = jax.jit(lambda x, k: pick(x, _settings([sampling] * draws), k, ours))(logits, keys)
    return np.bincount(np.asarray(tokens), minlength=5) / draws


def _normalised(weights) -> np.ndarray:
    return np.asarray(weights) / np.sum(weights)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0, 0, 1.0), PROBABILITY),
        (Sampling(0.5, 0, 1.0), _normalised(PROBABILITY**2)),
        (Sampling(1.0, 2, 1.0), _normalised([0, 0.4, 0, 0.3, 0])),
        (Sampling(1.0, 1, 1.0), [0, 1, 0, 0, 0]),
        (Sampling(1.0, 99, 1.0), PROBABILITY),
        # 0.4 + 0.3 = 0.7 is short of 0.8, so the next likeliest (0.15) is in and 0.1 is out.
        (Sampling(1.0, 0, 0.8), _normalised([0, 0.4, 0, 0.3, 0.15])),
        (Sampling(1.0, 0, 1e-6), [0, 1, 0, 0, 0]),
        # top_p acts on what top_k leaves: 4/7 of the mass is the first of two.
        (Sampling(1.0, 2, 0.5), [0, 1, 0, 0, 0]),
        (Sampling(0.0, 0, 1.0), [0, 1, 0, 0, 0]),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_draws_have_the_probabilities_of_the_definition(sampling, expected, ours):
    # Four standard errors of a share among 20,000.
    np.testing.assert_allclose(_frequencies(sampling, ours), expected, atol=4 * 0.5 / 20_000**0.5)


@pytest.mark.parametrize("ours", [True, False])
def test_a_draw_is_the_same_beside_any_other_settings(ours):
    each = [Sampling(0.0), Sampling(1.0, 0, 1.0), Sampling(0.7, 3, 1.0), Sampling(1.3, 0, 0.6), Sampling(2.0, 900, 0.9)]
    logits = jax.random.normal(jax.random.key(1), (5, 700)) * 2
    keys = jax.random.split(jax.random.key(2), 5)
    drawn = jax.jit(functools.partial(pick, ours=ours))
    together = np.asarray(drawn(logits, _settings(each), keys))
    alone = [int(drawn(logits[i : i + 1], _settings([s]), keys[i : i + 1])[0]) for i, s in enumerate(each)]
    assert together.tolist() == alone


@pytest.mark.parametrize("ours", [True, False])
def test_what_top_k_leaves_is_what_sorting_leaves(ours):
    logits = jax.random.normal(jax.random.key(3), (1, 500)) * 3
    likeliest = np.argsort(-np.asarray(logits)[0])[:7]
    settings = _settings([Sampling(50.0, 7)] * 400)  # so hot that all are drawn alike
    keys = jax.random.split(jax.random.key(4), 400)
    drawn = np.asarray(jax.jit(functools.partial(pick, ours=ours))(jnp.repeat(logits, 400, axis=0), settings, keys))
    assert set(drawn.tolist()) == set(likeliest.tolist())


@pytest.mark.parametrize("ours", [True, False])
def test_settings_at_their_ends_leave_the_likeliest(ours):
    ends = [Sampling(t, k) for t in (1e-3, 1e-8, 1e-10, 1e-30, 1e-37, 1e-38) for k in (0, 40)]
    ends += [Sampling(1.0, 0, 1e-37), Sampling(1.0, 0, 1e-40), Sampling(0.5, 9, 1e-300), Sampling(3e38, 1)]
    logits = jnp.tile(4 * jax.random.normal(jax.random.key(5), (64, 333)) + 30, (len(ends), 1))
    keys = jax.random.split(jax.random.key(6), 64 * len(ends))
    drawn = jax.jit(functools.partial(pick, ours=ours))(logits, _settings([s for s in ends for _ in range(64)]), keys)
    wrong = np.asarray(drawn).reshape(-1, 64) != np.asarray(logits).argmax(1).reshape(-1, 64)
    assert not wrong.any(), [s for s, row in zip(ends, wrong, strict=True) if row.any()]


@pytest.mark.filterwarnings("error")
def test_a_temperature_beyond_float32_draws_from_what_top_k_leaves_alike(params):
    drawn = generate(CONFIG, params, [_text(5)] * 40, tokens=1, context=CONTEXT, sampling=Sampling(1e300, 3))
    likeliest = np.argsort(-_uncached(params, _text(5))[-1])[:3]
    assert set(np.ravel(drawn)) == set(likeliest)


def test_a_text_is_the_same_whoever_joins_and_leaves(params):
    weights = prepare(CONFIG, params, CONFIG.vocab_size)
    entry = Entry(_text(4, 6), 10, Sampling(1.0, 0), seed=7, index=2)

    def text_of(others: list[Entry], steps: list[int]) -> list[int]:
        batch = Batch(CONFIG, weights, lanes=3, context=CONTEXT)
        waiting, mine, left = list(others), [], iter(steps)
        lane = batch.join([entry])[0]
        while True:
            joining = waiting[: len(batch.free)]
            waiting = waiting[len(joining) :]
            if joining:
                batch.join(joining)
            pieces = batch.advance(next(left, 2))
            mine += pieces[lane].tokens
            if pieces[lane].ended:
                return mine
            for other, piece in pieces.items():
                if piece.ended:
                    batch.leave(other)

    alone = text_of([], [16])
    assert len(alone) == 10
    others = [Entry(_text(n, n), n % 4 + 1, Sampling(0.1 * n, n), seed=n) for n in range(1, 9)]
    assert text_of(others, [1, 3, 1]) == text_of(others[::-1], [2]) == alone
    assert generate(CONFIG, params, [[1], [2], entry.prompt], tokens=10, context=CONTEXT, seed=7,
                    sampling=entry.sampling)[2] == alone  # fmt: skip


def test_logits_are_float32_where_all_else_is_bfloat16(monkeypatch):
    """As on an accelerator: not rounded to what they are made of."""
    monkeypatch.setattr(decoder, "compute_dtype", lambda: jnp.dtype(jnp.bfloat16))
    config = replace(CONFIG, vocab_size=43)  # of no other test, whose programs are float32's
    weights, cache = prepare(config, _noisy(config), 43), decode.empty_cache(config, 2, CONTEXT)
    assert not weights.packed
    assert cache.key[0].dtype == jnp.bfloat16
    token, at = np.int32([3, 40]), np.int32([0, 0])
    logits, _ = decode._read(config, weights, cache, token, at, decoder.angles_at(config, CONTEXT), jnp.int32(2))
    assert logits.dtype == jnp.float32
    assert (logits != logits.astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9


def test_logits_have_the_same_bits_in_any_company():
    """With kernels of ours: of 24 positions, among 1 to 16 lanes, at the first and the last of them."""
    config = replace(CONFIG, d_model=64, n_heads=4, d_ff=200, vocab_size=500).resolved()
    params = _noisy(config)
    weights, text = (
        prepare(config, params, 500),
        np.random.default_rng(3).integers(0, 500, (24, 16)).astype("i4"),
    )

    def logits_of(lanes: int, lane: int, taken: int, length: int) -> np.ndarray:
        read = jax.jit(
            lambda cache, token, at: decode._read(
                config, weights, cache, token, at, decoder.angles_at(config, length), jnp.int32(taken)
            )
        )
        cache, all_logits = decode.empty_cache(config, lanes, length), []
        for position, others in enumerate(text):
            token = others[:lanes].copy()
            token[lane] = text[position, 15]
            logits, cache = read(cache, token, np.full(lanes, position, np.int32))
            all_logits.append(np.asarray(logits)[lane])
        return np.array(all_logits)

    alone = logits_of(1, 0, 1, 24)
    assert np.abs(alone).max() > 0.5
    for lanes, lane, taken, length in ((2, 1, 2, 24), (3, 0, 3, 64), (5, 4, 5, 24), (16, 0, 1, 64), (16, 15, 16, 24)):
        assert (logits_of(lanes, lane, taken, length) == alone).all(), (lanes, lane, taken, length)


def test_log_probabilities_of_drawn_tokens_are_those_of_the_whole_text(params):
    batch = Batch(CONFIG, prepare(CONFIG, params, CONFIG.vocab_size), lanes=2, context=CONTEXT)
    prompt = _text(5)
    [lane] = batch.join([Entry(prompt, 6, Sampling(1.5, 0))])
    piece = batch.advance(top=3)[lane]
    expected = np.asarray(jax.nn.log_softmax(_uncached(params, prompt + piece.tokens), axis=-1))[4:10]
    np.testing.assert_allclose(piece.scores, [row[t] for row, t in zip(expected, piece.tokens, strict=True)], atol=1e-5)
    for row, top in zip(expected, piece.top, strict=True):
        assert list(top) == np.argsort(-row)[:3].tolist()
        np.testing.assert_allclose(list(top.values()), np.sort(row)[::-1][:3], atol=1e-5)


def test_a_cache_that_grows_and_shrinks_changes_no_text(params, monkeypatch):
    whole = Batch(CONFIG, prepare(CONFIG, params, CONFIG.vocab_size), lanes=2, context=200)
    assert whole.positions == 200
    monkeypatch.setattr(running, "WHOLE_BYTES", 0)
    weights, context = prepare(CONFIG, params, CONFIG.vocab_size), 200
    long, short = Entry(_text(30, 1), 150, Sampling(1.0, 0), seed=3), Entry(_text(9, 2), 20, Sampling(1.0, 0), seed=4)

    def texts_of(batch: Batch) -> tuple[list[list[int]], list[int]]:
        [a], texts, sizes = batch.join([long]), {0: [], 1: []}, []
        while batch.busy:
            for lane, piece in batch.advance(8).items():
                texts[lane] += piece.tokens
                if piece.ended:
                    batch.leave(lane)
                    if lane == a:
                        batch.join([short])
                        a = -1
            sizes.append(batch.positions)
        return list(texts.values()), sizes

    growing = Batch(CONFIG, weights, lanes=2, context=context)
    growing.compile([30, 9])
    assert growing.positions == 64
    texts, sizes = texts_of(growing)
    assert len(texts[0]) == 150 + 20
    assert [s for i, s in enumerate(sizes) if i == 0 or s != sizes[i - 1]] == [64, 128, 200, 64]
    fixed, sizes = texts_of(Batch(CONFIG, weights, lanes=2, context=context, length=context))
    assert texts == fixed
    assert set(sizes) == {200}
    whole.compile([30, 9])
    texts, sizes = texts_of(whole)
    assert texts == fixed
    assert set(sizes) == {200}


def test_a_cache_is_as_long_as_its_texts_need():
    assert [bucket(n, 1000) for n in (1, 64, 65, 500, 513, 1000)] == [64, 64, 128, 512, 1000, 1000]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"prompts": [[]]}, "has no tokens"),
        (
            {"prompts": [[1] * CONTEXT]},
            "16 tokens long and the model was trained on 16 at a time; shorten it to at most 15",
        ),
        ({"prompts": [[1, 41]]}, "outside of the model's vocabulary of 41"),
        ({"prompts": [[-1]]}, "outside of the model's vocabulary"),
        ({"tokens": -1}, "tokens is -1"),
        ({"context": 1}, "context 1"),
        ({"sampling": Sampling(-0.1)}, "temperature is -0.1"),
        ({"sampling": Sampling(float("nan"))}, "temperature is nan"),
        ({"sampling": Sampling(top_k=-3)}, "top_k is -3"),
        ({"sampling": Sampling(top_p=0.0)}, "top_p is 0.0"),
        ({"sampling": Sampling(top_p=1.5)}, "top_p is 1.5"),
    ],
)
def test_what_cannot_be_followed_is_said(params, changes, says):
    arguments = {"prompts": [[1, 2]], "tokens": 4, "context": CONTEXT} | changes
    with pytest.raises(ConfigError, match=says):
        generate(CONFIG, params, arguments.pop("prompts"), **arguments)


def test_nothing_asked_is_nothing_done(params):
    assert generate(CONFIG, params, [[1], [2]], tokens=0, context=CONTEXT) == [[], []]
    assert generate(CONFIG, params, [], tokens=5, context=CONTEXT) == []
