"""Which example when: a pure function of (seed, index), by grain's random-access datasets.

An example is a window of T + 1 tokens. A corpus' tokens are cut every T tokens, so windows overlap by the one token
that is the last target of one and the first input of the next, and an epoch predicts every token once. Each corpus is
permuted anew in every epoch (all windows of an epoch before any of the next), and corpora are mixed by weight. With a
`fraction` a corpus has only the first windows of a fixed order of the seed, so that smaller fractions are nested in
larger ones. Another mixture for the end of a run (an anneal) has an order of its own whose examples are numbered from
ANNEAL on; in it a corpus goes on where the first order left it, so no window comes again before all others came.
Nothing is remembered between calls: resuming, rewinding or skipping needs an index, nothing else.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError, closest

ANNEAL = 1 << 40  # the number of an anneal's first example: beyond all that a run reads before
_PLACE = (1 << 40) - 1


class Order:
    """The order of a store's training windows.

    `weights` are shares by tokens, ((corpus, weight), ...), of any sum; corpora that are not named are left out.
    Without weights the store's own are used (`areca corpus build a.txt:0.7 b.txt:0.3`), or else each weighs its size.
    Grain keeps the shares to about a hundredth of the smallest; `realised` says what they are. Of each corpus the order
    begins after the `begin` examples that another order has read (none if it is not named).
    """

    def __init__(
        self,
        store: TokenStore,
        context: int,
        seed: int = 0,
        weights: Sequence[tuple[str, float]] = (),
        fraction: float = 1.0,
        begin: Mapping[str, int] | None = None,
        setting: str = "data.weights",
    ) -> None:
        """`setting` is what the user calls the weights."""
        if context < 1:
            raise ConfigError(f"a context of {context} tokens can't be; it must be at least 1.")
        if not 0 < fraction <= 1:
            raise ConfigError(
                f"data.fraction is {fraction}; it must lie above 0 and be at most 1, which is all the text."
            )
        self.context = context
        self.seed = seed
        shares = _weights(store, weights, setting)
        self.corpora: list[str] = [name for name, _ in shares]
        whole = [(store.corpus(n).train_tokens - 1) // context for n in self.corpora]
        for name, count in zip(self.corpora, whole, strict=True):
            if count < 1:
                raise DataError(
                    f"the corpus {name!r} has {store.corpus(name).train_tokens:,} training tokens, fewer than one "
                    f"window of {context + 1:,}; use a smaller context or more text."
                )
        self._counts = [max(1, round(fraction * count)) for count in whole]
        self._starts = np.concatenate([[0], np.cumsum(whole)]).astype(np.int64)
        total = sum(w for _, w in shares)
        self.weights: dict[str, float] = {name: w / total for name, w in shares}
        told = bool(weights) or any(c.weight is not None for c in store.corpora)
        self.mixture: dict[str, float] | None = self.weights if told else None  # None: nobody chose the shares
        self._weights, self._begin = [w for _, w in shares], dict(begin or {})
        self._dataset = self._build(self._weights)
        self._indices = np.array([[c.name for c in store.corpora].index(n) for n in self.corpora], np.int64)

    @property
    def windows_per_epoch(self) -> dict[str, int]:
        """Windows of each corpus: after so many of its examples the corpus repeats, in a new order."""
        return dict(zip(self.corpora, self._counts, strict=True))

    def _build(self, weights: list[float]):
        import grain  # slow to import

        parts = []
        for i, name in enumerate(self.corpora):
            start, stop, count = int(self._starts[i]), int(self._starts[i + 1]), self._counts[i]
            if count == stop - start:
                numbers = grain.MapDataset.range(start, stop)
            else:
                chosen = start + first_of(self.seed, name, stop - start, count)
                numbers = grain.MapDataset.source(cast(Any, chosen))
            shuffled = numbers.shuffle(seed=_seed(self.seed, name)).repeat(reseed_each_epoch=True)
            begin = self._begin.get(name, 0)
            parts.append(shuffled[begin:] if begin else shuffled)
        return parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, weights)

    def windows(self, start: int, stop: int) -> np.ndarray:
        """`[n, 2]` int64 for examples start .. stop-1: index in `store.corpora`, offset of the first token."""
        if not 0 <= start <= stop:
            raise ConfigError(f"examples {start} to {stop} are no range.")
        number = np.array([self._dataset[i] for i in range(start, stop)], np.int64)
        part = np.searchsorted(self._starts, number, side="right") - 1
        offset = (number - self._starts[part]) * self.context
        return np.stack([self._indices[part], offset], axis=1)

    def read(self, n: int) -> dict[str, int]:
        """How many of the first `n` examples are of each corpus, exactly, from the last few of them."""
        if len(self.corpora) == 1 or n == 0:
            return dict.fromkeys(self.corpora, n)
        import grain

        # The mixture of numbers that say their corpus and their place in it.
        places = [grain.MapDataset.range(i << 40, (i + 1) << 40) for i in range(len(self.corpora))]
        mixed = grain.MapDataset.mix(places, self._weights)
        found: dict[str, int] = {}
        for index in range(n - 1, -1, -1):
            number = int(cast(Any, mixed[index]))
            found.setdefault(self.corpora[number >> 40], (number & _PLACE) + 1)
            if len(found) == len(self.corpora):
                break
        return {name: found.get(name, 0) for name in self.corpora}

    def unique_tokens(self, tokens: int) -> int:
        """Distinct targets among the first `tokens` of a run: of each corpus its share of them, at most all it has."""
        return sum(
            min(count * self.context, round(self.weights[name] * tokens))
            for name, count in self.windows_per_epoch.items()
        )

    def realised(self, n: int) -> dict[str, float]:
        """The share of each corpus, by tokens, in the first `n` examples (about 30 us an example)."""
        chosen = self.windows(0, n)[:, 0]
        return {c: float(np.mean(chosen == i)) if n else 0.0 for c, i in zip(self.corpora, self._indices, strict=True)}


def first_of(seed: int, corpus: str, windows: int, count: int) -> np.ndarray:
    """The numbers of the first `count` of a corpus' windows in the order of its fractions, ascending.

    The order sorts Philox's raw output, which numpy keeps the same from version to version, unlike its permutations.
    """
    keys = np.random.Philox(key=_seed(seed, corpus, "fraction")).random_raw(windows)
    return np.sort(np.argsort(keys, kind="stable")[:count])


def _seed(seed: int, corpus: str, purpose: str = "order") -> int:
    """32 bits of a digest: grain adds the epoch to its seed, so consecutive seeds would share epochs."""
    return int.from_bytes(hashlib.sha256(f"{purpose}/{seed}/{corpus}".encode()).digest()[:4], "little")


def _weights(store: TokenStore, weights: Sequence[tuple[str, float]], setting: str) -> list[tuple[str, float]]:
    known = [c.name for c in store.corpora]
    if not weights:
        own = [(c.name, c.weight) for c in store.corpora if c.weight is not None]
        weights = own or [(c.name, float(c.train_tokens)) for c in store.corpora]
    chosen: dict[str, float] = {}
    for name, weight in weights:
        if name not in known:
            raise ConfigError(
                f"{setting} names {name!r}, which {store.path} does not hold{closest(name, known)}; it has "
                f"{', '.join(known)}."
            )
        if name in chosen:
            raise ConfigError(f"{setting} names {name!r} twice; give each corpus one weight.")
        if not (weight > 0 and np.isfinite(weight)):
            raise ConfigError(
                f"{setting} gives {name!r} the weight {weight}; it must be positive (leave a corpus out to skip it)."
            )
        chosen[name] = weight
    return [(name, chosen[name]) for name in known if name in chosen]
