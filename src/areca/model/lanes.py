"""A running batch of texts: each joins a lane when it comes, draws some tokens at a time, and leaves when it is done.

Built on the programs of `areca.model.decode`, which see arrays of all lanes; this side knows what each lane's text is.
A text that outgrows the context goes on from its last half context, read anew: positions the model never saw in
training are not asked of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from areca.errors import ConfigError
from areca.model import decode, decoder
from areca.model.config import ModelConfig
from areca.model.prepared import Weights, prepare
from areca.model.sampling import Sampling, Settings, text_key

SHORTEST = 64  # positions of the smallest cache; each is twice as long as the one before, up to the context
WHOLE_BYTES = 256 << 20  # of a cache that has room for the context from the beginning
SHORTEST_READ = 16  # tokens that the shortest prompts are padded to
DEFAULT = Sampling()


@dataclass(frozen=True)
class Piece:
    """What a lane drew in one call, and whether its text has ended: by the stop token or by its length."""

    tokens: list[int]
    ended: bool
    scores: list[float] = field(default_factory=list)  # log-probabilities, in nats
    top: list[dict[int, float]] = field(default_factory=list)  # of the likeliest tokens


@dataclass
class _Text:
    ids: list[int]  # prompt and what was drawn
    first: int  # where in `ids` the cache begins
    left: int
    drawn: int
    sampling: Sampling
    key: np.ndarray


@dataclass(frozen=True)
class Entry:
    """A text that is to join: its prompt, how many tokens it may draw, and of which seed it is text number `index`."""

    prompt: Sequence[int]
    tokens: int
    sampling: Sampling
    seed: int = 0
    index: int = 0


class Batch:
    """Up to `lanes` texts that draw tokens side by side.

    Args:
        weights: of `prepare`.
        context: tokens the model was trained on at a time, and sees at most.
        length: of the longest text that will join, prompt and drawn tokens, which sizes the cache. If not given, the
            cache has room for the context where that is little and costs nothing (kernels of ours read what a text
            has), or else grows and shrinks with the texts, by another program for each size (which changes no bit:
            they are seen to agree).
        stop: the token that ends a text; -1 for none.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        *,
        lanes: int,
        context: int,
        length: int | None = None,
        stop: int = -1,
    ) -> None:
        self._config, self._weights, self._stop = config.resolved(), weights, stop
        whole = weights.packed and decode.cache_bytes(config, lanes, context) <= WHOLE_BYTES
        self.context, self._grows, self._rereads = context, length is None and not whole, (length or 0) > context
        self.positions = context if whole and length is None else bucket(min(length or 1, context), context)
        # Where the weights are put: for a cache that is nowhere yet `advance` would be compiled, and again after it.
        self._cache = jax.device_put(decode.empty_cache(config, lanes, self.positions), weights.embedding.sharding)
        self._texts: list[_Text | None] = [None] * lanes

    @property
    def free(self) -> list[int]:
        """Lanes without a text."""
        return [i for i, text in enumerate(self._texts) if text is None]

    @property
    def busy(self) -> list[int]:
        """Lanes with one."""
        return [i for i, text in enumerate(self._texts) if text is not None]

    def join(self, entries: Sequence[Entry]) -> list[int]:
        """Reads the prompts (1 to `context` - 1 tokens each) into free lanes; returns those."""
        lanes = self.free[: len(entries)]
        assert len(lanes) == len(entries)
        for lane, e in zip(lanes, entries, strict=True):
            key = np.asarray(text_key(np.uint32(e.seed), np.uint32(e.index)))
            self._texts[lane] = _Text(list(e.prompt), 0, e.tokens, 0, e.sampling, key)
        self._fill(lanes)
        return lanes

    def leave(self, lane: int) -> None:
        """Frees a lane; what its text was is forgotten."""
        self._texts[lane] = None

    def advance(self, steps: int = decode.MOST, top: int = 0) -> dict[int, Piece]:
        """Draws at most `steps` tokens of each text (up to 16), with log-probabilities if `top` is 1 or more."""
        self._fill([i for i in self.busy if self._room(i) < 1], again=True)
        self._fit(max((self.context - self._room(i) for i in self.busy), default=0) + steps)
        lanes = self._arrays()
        self._cache, out = decode.advance(
            self._config, self._weights, self._cache, lanes, np.int32(steps), self._stop, top
        )
        tokens, scores, tops = np.asarray(out.token), _host(out.score), (_host(out.top_token), _host(out.top_score))
        pieces = {}
        for i in self.busy:
            text = self._text(i)
            new = [int(t) for t in tokens[i] if t >= 0]
            text.ids += new
            text.left -= len(new)
            text.drawn += len(new)
            ended = text.left == 0 or new[-1:] == [self._stop]
            pieces[i] = Piece(new, ended, *_scored(i, len(new), scores, *tops))
            text.left = 0 if ended else text.left
        return pieces

    def compile(self, prompts: Sequence[int] = (), tops: Sequence[int] = (0,)) -> None:
        """Compiles what texts with prompts of these lengths need. Only while no text is there."""
        assert not self.busy
        prompts = [*prompts, *([self._half()] if self._rereads else [])]
        lengths = {bucket(n - 1, self.context, SHORTEST_READ) for n in prompts if n > 1}
        read = [self._prefill(np.zeros(length, np.int32)) for length in sorted(lengths)]
        for size in self._sizes() if self._grows else [self.positions]:
            self._fit(size)
            for top in tops:
                self._cache, out = decode.advance(
                    self._config, self._weights, self._cache, self._arrays(), np.int32(0), self._stop, top
                )
                np.asarray(out.token)
            for one in read:
                if one.key[0].shape[1] <= size or not self._grows:
                    self._place(one, 0)
        self._fit(1)
        text_key(np.uint32(0), np.uint32(0)).block_until_ready()

    def _text(self, lane: int) -> _Text:
        text = self._texts[lane]
        assert text is not None
        return text

    def _room(self, lane: int) -> int:
        """Tokens that can still be read into a lane's cache."""
        text = self._text(lane)
        return self.context - (len(text.ids) - text.first - 1)

    def _half(self) -> int:
        """Tokens of a text that it goes on from once it has filled the context."""
        return max(1, self.context // 2)

    def _arrays(self) -> decode.Lanes:
        """All lanes as the program takes them. Those without a text read token 0 at position 0."""
        B = len(self._texts)
        token, position, left, drawn, top_k = (np.zeros(B, np.int32) for _ in range(5))
        temperature, top_p = np.zeros(B, np.float32), np.ones(B, np.float32)
        key = np.zeros((B, 2), np.uint32)
        for i in self.busy:
            text = self._text(i)
            token[i], position[i] = text.ids[-1], len(text.ids) - text.first - 1
            left[i], drawn[i], key[i] = min(text.left, self._room(i)), text.drawn, text.key
            if not left[i]:
                token[i] = position[i] = 0
            s = text.sampling
            temperature[i], top_k[i] = min(s.temperature, float(np.finfo(np.float32).max)), min(s.top_k, 2**31 - 1)
            top_p[i] = s.top_p
        return decode.Lanes(token, position, left, drawn, key, Settings(temperature, top_k, top_p))  # type: ignore[arg-type]

    def _fill(self, lanes: list[int], again: bool = False) -> None:
        """Reads all but the last token of these lanes' texts; `again` for those that have filled the context."""
        for i in lanes:
            text = self._text(i)
            if again:
                if not text.left:
                    continue
                text.first = len(text.ids) - self._half()
            if read := text.ids[text.first : -1]:
                padded_T = np.zeros(bucket(len(read), self.context, SHORTEST_READ), np.int32)
                padded_T[: len(read)] = read
                self._fit(len(padded_T), shrink=False)
                self._place(self._prefill(padded_T), i)

    def _prefill(self, tokens_T: np.ndarray) -> decode.Cache:
        return decode.prefill(self._config, self._weights, tokens_T)

    def _place(self, read: decode.Cache, lane: int) -> None:
        length = min(self.positions, read.key[0].shape[1])
        if length < read.key[0].shape[1]:  # padding beyond the cache
            read = decode.resize(read, length)
        self._cache = decode.place(self._cache, read, np.int32(lane))

    def _fit(self, length: int, shrink: bool = True) -> None:
        """Gives the cache room for so many positions, by halves and doubles, if it is one that grows."""
        wanted = bucket(min(length, self.context), self.context)
        while self._grows and (wanted > self.positions or (shrink and wanted < self.positions)):
            self._resize(self.positions + 1 if wanted > self.positions else self._below())

    def _below(self) -> int:
        return max(s for s in self._sizes() if s < self.positions)

    def _sizes(self) -> list[int]:
        """Lengths that a cache may have."""
        return sorted({bucket(1 << i, self.context) for i in range(self.context.bit_length() + 1)})

    def _resize(self, length: int) -> None:
        self.positions = bucket(length, self.context)
        self._cache = decode.resize(self._cache, self.positions)


def bucket(length: int, context: int, shortest: int = SHORTEST) -> int:
    """The smallest of `shortest`, twice that, and so on, that holds `length`; at most the context."""
    size = shortest
    while size < length:
        size *= 2
    return min(size, context)


def generate(
    config: ModelConfig,
    params: decoder.Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    context: int,
    sampling: Sampling = DEFAULT,
    seed: int = 0,
    stop: int | None = None,
    vocabulary: int | None = None,
) -> list[list[int]]:
    """Continues every prompt by at most `tokens` tokens, and returns the continuations.

    Args:
        prompts: token ids, each from 1 to `context` - 1 of them.
        context: tokens the model was trained on at a time, and sees at most.
        seed: of the draws; that of token n of prompt i is folded from (seed, i, n), so it depends on no other prompt.
        stop: the token that ends a text (it is the last of its continuation).
        vocabulary: ids from here on are never drawn (a model's table may be longer than its tokenizer's).

    Raises:
        ConfigError: a setting, an empty or too long prompt, an id that the model does not have.
    """
    sampling.check()
    vocabulary = min(vocabulary or config.vocab_size, config.vocab_size)
    check_prompts(prompts, tokens, context, vocabulary)
    if not prompts or not tokens:
        return [[] for _ in prompts]
    batch = Batch(
        config, prepare(config, params, vocabulary), lanes=len(prompts), context=context,
        length=max(map(len, prompts)) + tokens, stop=-1 if stop is None else stop,
    )  # fmt: skip
    texts: list[list[int]] = [[] for _ in prompts]

    def take(i: int, piece: Piece) -> bool:
        texts[i] += piece.tokens
        return True

    run(batch, [Entry(p, tokens, sampling, seed, i) for i, p in enumerate(prompts)], take)
    return texts


def run(batch: Batch, entries: Sequence[Entry], take: Callable[[int, Piece], bool], steps: int = decode.MOST) -> None:
    """Draws the texts of an empty batch until all have ended, or `take` has said that one need not go on.

    `take` gets a text's place in `entries` and each piece of it, and returns whether more of it is wanted.
    """
    places = {lane: i for i, lane in enumerate(batch.join(entries))}
    while batch.busy:
        for lane, piece in batch.advance(steps).items():
            if not take(places[lane], piece) or piece.ended:
                batch.leave(lane)


def check_prompts(prompts: Sequence[Sequence[int]], tokens: int, context: int, vocabulary: int) -> None:
    """ConfigError for what `generate` can't continue."""
    if tokens < 0:
        raise ConfigError(f"tokens is {tokens}; give the number of tokens to generate.")
    if context < 2:
        raise ConfigError(f"a model of context {context} can't continue a text; it needs at least 2.")
    for prompt in prompts:
        if not len(prompt):
            raise ConfigError("a prompt has no tokens; start from the token that ends documents.")
        if len(prompt) >= context:
            raise ConfigError(
                f"the prompt is {len(prompt)} tokens long and the model was trained on {context} at a time; "
                f"shorten it to at most {context - 1}."
            )
        if not all(0 <= t < vocabulary for t in prompt):
            raise ConfigError(f"the prompt has a token outside of the model's vocabulary of {vocabulary}.")


def _host(array: object) -> np.ndarray | None:
    return None if array is None else np.asarray(array)


def _scored(
    lane: int, count: int, scores: np.ndarray | None, ids: np.ndarray | None, values: np.ndarray | None
) -> tuple[list[float], list[dict[int, float]]]:
    if scores is None or ids is None or values is None:
        return [], []
    tops = [dict(zip(ids[lane, n].tolist(), values[lane, n].tolist(), strict=True)) for n in range(count)]
    return scores[lane, :count].tolist(), tops
