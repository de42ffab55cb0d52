"""Text from tokens as they are drawn: whole characters only, and nothing of a stop string or past it.

A token may end inside a character, and a stop string may begin in one token and end in another. What could still become
either is held back until it is known.
"""

import codecs
from collections.abc import Iterable, Sequence

from areca.data.tokenizer import Tokenizer


class Written:
    """The text of one continuation. All that `add` and `finish` return, joined, is `text`.

    Bytes that are no UTF-8 read as U+FFFD. `stopped` once a stop string was met; the text ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = [s for s in stops if s]
        self._held = ""
        self.text = ""
        self.tokens = 0  # that the text took, with the one that completed a stop string
        self.stopped = False

    def add(self, tokens: Iterable[int]) -> str:
        """Reads some more tokens, up to a stop string; returns the text that is certain now."""
        out = ""
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            out += self._take(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return out

    def finish(self) -> str:
        """The rest, when no more tokens come."""
        if self.stopped:
            return ""
        sure = self._take(self._decoder.decode(b"", final=True))
        rest, self._held = self._held, ""
        self.text += rest
        return sure + rest

    def _take(self, new: str) -> str:
        self._held += new
        found = [at for s in self._stops if (at := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            sure, self._held = self._held[: min(found)], ""
        else:
            keep = max((_overlap(self._held, s) for s in self._stops), default=0)
            sure, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.text += sure
        return sure


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that may be the beginning of `stop`."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
