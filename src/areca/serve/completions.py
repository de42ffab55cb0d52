"""A completion: from a request to its jobs, and from what they draw to the API's objects, whole or as a stream."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from areca.data.tokenizer import Tokenizer
from areca.data.written import Written
from areca.model.lanes import Entry
from areca.serve.engine import Engine, Job, QueueFull, Stopped, Stretch
from areca.serve.protocol import DEFAULT_TOKENS, MOST_LOGPROBS, Refused, Request


@dataclass(frozen=True)
class Served:
    """What is known of the model that is served; its weights are the engine's."""

    name: str
    step: int
    tokenizer: Tokenizer
    context: int
    vocabulary: int


@dataclass
class Choice:
    """What one text of a completion has come to."""

    prompt: list[int]
    echo: str  # the prompt as it reads, if it is wanted back
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)
    finish: str | None = None


class Completion:
    """One request on its way through the engine. Call `submit`, then `whole` or `stream`; always `close`."""

    def __init__(self, request: Request, model: Served, engine: Engine) -> None:
        self._request, self._model, self._engine = request, model, engine
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        prompts = [_tokens(model, p) for p in request.prompts]
        self._choices = [Choice(p, _text(model, p) if request.echo else "") for p in prompts for _ in range(request.n)]
        self._arrived: asyncio.Queue[tuple[int, Stretch]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def job(i: int, choice: Choice) -> Job:
            tokens = _length(request.tokens, len(choice.prompt), model.context)
            entry = Entry(choice.prompt, tokens, request.sampling, request.seed, i)

            def post(stretch: Stretch) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._arrived.put_nowait, (i, stretch))

            top = 0 if request.logprobs is None else MOST_LOGPROBS
            return Job(entry, Written(model.tokenizer, request.stops), post, top)

        self._jobs = [job(i, choice) for i, choice in enumerate(self._choices)]

    def submit(self) -> None:
        """Queues the texts; Refused where there is no room for them."""
        try:
            asked = [job for job in self._jobs if job.entry.tokens]
            self._engine.submit(asked)
        except QueueFull:
            raise Refused(
                "the server has as many texts waiting as it takes; try again soon.",
                status=429,
                code="queue_full",
                retry=1,
            ) from None
        except Stopped:
            raise Refused("the server is stopping; ask another.", status=503, code="stopping", retry=5) from None
        for i, job in enumerate(self._jobs):
            if not job.entry.tokens:
                self._arrived.put_nowait((i, Stretch("", [], [], [], "length")))

    def close(self) -> None:
        """Cancels what still runs."""
        self._engine.cancel([job for job, c in zip(self._jobs, self._choices, strict=True) if c.finish is None])

    async def whole(self) -> dict[str, Any]:
        """The answer once all texts have ended."""
        async for _ in self._stretches():
            pass
        choices = [
            self._choice(i, c.echo + c.text, c.finish, self._logprobs(c, len(c.echo)))
            for i, c in enumerate(self._choices)
        ]
        return {**self._object(choices), "usage": self._usage()}

    async def stream(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        for i, c in enumerate(self._choices):
            if c.echo:
                yield self._event([self._choice(i, c.echo, None, None)])
        try:
            async for i, stretch in self._stretches():
                if not (stretch.text or stretch.tokens or stretch.finish):
                    continue
                c = self._choices[i]
                part = Choice(c.prompt, "", stretch.text, stretch.tokens, stretch.scores, stretch.top, stretch.finish)
                offset = len(c.echo) + len(c.text) - len(stretch.text)
                yield self._event([self._choice(i, stretch.text, stretch.finish, self._logprobs(part, offset))])
        except Refused as refused:
            yield f"data: {json.dumps(refused.body())}\n\n"
            return
        if self._request.usage:
            yield f"data: {json.dumps({**self._object([]), 'usage': self._usage()})}\n\n"
        yield "data: [DONE]\n\n"

    async def _stretches(self) -> AsyncIterator[tuple[int, Stretch]]:
        left = len(self._choices)
        while left:
            i, stretch = await self._arrived.get()
            c = self._choices[i]
            c.finish = stretch.finish
            if stretch.finish == "error":
                raise Refused(
                    "the server stopped before the text was done; try again.", status=503, code="stopped", retry=5
                )
            c.text += stretch.text
            c.tokens += stretch.tokens
            c.scores += stretch.scores
            c.top += stretch.top
            left -= stretch.finish is not None
            yield i, stretch

    def _event(self, choices: list[dict[str, Any]]) -> str:
        return f"data: {json.dumps(self._object(choices))}\n\n"

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model.name,
            "choices": choices,
        }

    def _choice(self, i: int, text: str, finish: str | None, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"text": text, "index": i, "logprobs": logprobs, "finish_reason": finish}

    def _usage(self) -> dict[str, int]:
        read = sum(len(c.prompt) for c in self._choices[:: self._request.n])
        drawn = sum(len(c.tokens) for c in self._choices)
        return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}

    def _logprobs(self, c: Choice, offset: int) -> dict[str, Any] | None:
        """The API's parallel lists. Tokens that end inside a character read as U+FFFD; offsets count characters."""
        if self._request.logprobs is None:
            return None
        pieces = [self._piece(t) for t in c.tokens]
        offsets = [offset + sum(map(len, pieces[:i])) for i in range(len(pieces))]
        tops = [
            {self._piece(t): score for t, score in sorted(top.items(), key=lambda x: -x[1])[: self._request.logprobs]}
            for top in c.top
        ]
        return {
            "tokens": pieces,
            "token_logprobs": c.scores,
            "top_logprobs": tops if self._request.logprobs else None,
            "text_offset": offsets,
        }

    def _piece(self, token: int) -> str:
        return self._model.tokenizer.decode_bytes([token]).decode("utf-8", "replace")


def _tokens(model: Served, prompt: str | list[int]) -> list[int]:
    """A prompt as tokens, from 1 to the context less 1 of them; nothing is the beginning of a document."""
    tokenizer, context, vocabulary = model.tokenizer, model.context, model.vocabulary
    if isinstance(prompt, list):
        if not all(0 <= t < vocabulary for t in prompt):
            raise Refused(f"the prompt has a token outside of the model's vocabulary of {vocabulary}.", param="prompt")
        ids = prompt
    elif len(prompt.encode()) > context * tokenizer.longest_token:
        raise _too_long(f"more than {context}", context)
    else:
        ids = tokenizer.encode(prompt) or [tokenizer.eod_id]
    if len(ids) >= context:
        raise _too_long(str(len(ids)), context)
    return ids


def _length(asked: int | None, prompt: int, context: int) -> int:
    room = context - prompt
    if asked is None:
        return min(DEFAULT_TOKENS, room)
    if asked > room:
        raise Refused(
            f"the prompt has {prompt} tokens and max_tokens is {asked}, {prompt + asked} in all, and the model was "
            f"trained on {context} at a time; ask for at most {room}.",
            param="max_tokens", code="context_length_exceeded",
        )  # fmt: skip
    return asked


def _too_long(length: str, context: int) -> Refused:
    return Refused(
        f"the prompt is {length} tokens long and the model was trained on {context} at a time; shorten it to at most "
        f"{context - 1}.", param="prompt", code="context_length_exceeded",
    )  # fmt: skip


def _text(model: Served, ids: list[int]) -> str:
    return model.tokenizer.decode_bytes(ids).decode("utf-8", "replace")
