"""Batches of tokens: for training in the order of `Order`, for held-out evaluation always the same.

Legend: B sequences, T tokens predicted in each; an array _BT1 has the T inputs and their T targets, shifted by one.
"""

import queue
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np

from areca.config import DataConfig
from areca.data.order import ANNEAL, Order
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError


class Batches:
    """Training batches as a function of the range of examples they hold.

    With `anneal`, the weights of a mixture for the end of the run, examples from `ANNEAL` on are that mixture's, once
    `anneal_after` has said how many examples come before it.
    """

    def __init__(self, store: TokenStore, config: DataConfig, anneal: Sequence[tuple[str, float]] = ()):
        self.store, self.config = store, config
        self.context = config.context
        self.anneal: Order | None = None
        self._anneal = tuple(anneal)
        self.order = Order(store, config.context, config.seed, config.weights, config.fraction)
        self.before = 0  # examples, of which some may be skipped, that come before the anneal
        self._tokens = [store.tokens(c.name, "train") for c in store.corpora]
        part = f"data.fraction {config.fraction:g} of " if config.fraction < 1 else ""
        self._what = f"{part}{store.path}"

    def anneal_after(self, examples: int) -> None:
        """Sets how many examples come before the anneal: each corpus goes on there after those of them that it gave."""
        if self._anneal and (self.anneal is None or examples != self.before):
            c, self.before = self.config, examples
            begin = self.order.read(examples)
            self.anneal = Order(self.store, c.context, c.seed, self._anneal, c.fraction, begin, "anneal.weights")

    def get(self, start: int, size: int) -> np.ndarray:
        """Examples start .. start+size-1 as int32 `[size, T + 1]`. DataError for tokens that the store can't have."""
        order, first = (self.order, start) if start < ANNEAL or self.anneal is None else (self.anneal, start - ANNEAL)
        if size > (most := sum(order.windows_per_epoch.values())):
            where = " in the anneal's mixture" if order is self.anneal else ""
            raise DataError(
                f"a batch of {size} sequences of {self.context} tokens is larger than {self._what}, which has "
                f"{most} such sequences to train on{where}; use a smaller batch or context, or more text."
            )
        windows = order.windows(first, first + size)
        tokens_BT1 = np.empty((size, self.context + 1), np.int32)
        for i, tokens in enumerate(self._tokens):
            rows = np.flatnonzero(windows[:, 0] == i)
            if len(rows):
                read = tokens[windows[rows, 1][:, None] + np.arange(self.context + 1)]
                self.store.check_ids(read, self.store.corpora[i].name)
                tokens_BT1[rows] = read
        return tokens_BT1

    def iterate(self, plan: Iterable[tuple[int, int]], depth: int = 4) -> Generator[np.ndarray]:
        """`get(start, size)` for each of `plan`, made ahead by one background thread, at most `depth` in waiting.

        An error of the thread is raised here, where the batch would have been. Closing the iterator ends the thread.
        """
        ready: queue.Queue = queue.Queue(maxsize=depth)
        stopped = threading.Event()

        def put(item: object) -> bool:
            while not stopped.is_set():
                try:
                    ready.put(item, timeout=0.1)
                    return True
                except queue.Full:
                    continue
            return False

        def work() -> None:
            try:
                for start, size in plan:
                    if not put(self.get(start, size)):
                        return
                put(None)
            except BaseException as error:  # handed to the consumer
                put(error)

        thread = threading.Thread(target=work, name="areca-batches", daemon=True)
        thread.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            thread.join()


def heldout(
    store: TokenStore, context: int, batch: int, max_tokens: int = 0, corpus: str | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Held-out tokens, `(tokens_BT1 int32 [B, T+1], weight_BT float32 [B, T])`; weight 1 counts a target, 0 is padding.

    A pure function of its arguments. Each corpus (or only `corpus`) is cut into windows of T targets, its last one
    padded, so every held-out token but a corpus' first is predicted once. With `max_tokens` below that, as many whole
    windows are read as fit, spread evenly over all. `batch` says only how many come at once; the last is padded.
    """
    if context < 1 or batch < 1:
        raise ConfigError(f"held-out evaluation needs a context and a batch of at least 1, not {context} and {batch}.")
    names = [corpus] if corpus is not None else [c.name for c in store.corpora]
    streams = [store.tokens(n, "heldout") for n in names]
    ends = np.cumsum([-(-max(len(tokens) - 1, 0) // context) for tokens in streams])  # windows, cumulative
    total = int(ends[-1])
    if total == 0:
        raise DataError(
            f"{store.path} has no held-out tokens{f' in {corpus!r}' if corpus else ''}; build it with more."
        )
    wanted = min(total, max(1, max_tokens // context)) if max_tokens > 0 else total
    for first in range(0, wanted, batch):
        tokens_BT1 = np.full((batch, context + 1), store.eod_id, np.int32)
        weight_BT = np.zeros((batch, context), np.float32)
        for row, k in enumerate(range(first, min(first + batch, wanted))):
            number = (2 * k + 1) * total // (2 * wanted)  # k itself where all are read
            i = int(np.searchsorted(ends, number, side="right"))
            offset = (number - (int(ends[i - 1]) if i else 0)) * context
            piece = streams[i][offset : offset + context + 1]
            store.check_ids(piece, names[i], "heldout")
            tokens_BT1[row, : len(piece)] = piece
            weight_BT[row, : len(piece) - 1] = 1.0
        yield tokens_BT1, weight_BT
