"""Requests as OpenAI's completions API has them: read, checked, refused in its own error objects.

Nothing a client sends is believed: types are those of the API and nothing near them, numbers are finite and in range, a
field that is not known, or that asks for what is not done here, is refused by name instead of passed over.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areca.errors import ConfigError, closest
from areca.files import not_json
from areca.model.sampling import Sampling

MOST_STOPS = 4
MOST_LOGPROBS = 5
MOST_STOP_LENGTH = 1000
DEFAULT_TOKENS = 16
# Fields of the API that are taken in the value that changes nothing, and in no other.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "suffix": (None, ""),
}


class Refused(Exception):
    """A request that is answered with an error object."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None, retry: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry = status, param, code, retry

    def body(self) -> dict[str, Any]:
        """The API's error object."""
        kind = {429: "rate_limit_error"}.get(self.status, "server_error" if self.status >= 500 else "")
        return {
            "error": {
                "message": str(self),
                "type": kind or "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }
        }


@dataclass(frozen=True)
class Request:
    """A completion to make: of each prompt `n` choices of at most `tokens` tokens."""

    prompts: list[str | list[int]]
    tokens: int | None  # None: not said
    sampling: Sampling
    seed: int
    n: int
    stops: list[str]
    stream: bool
    usage: bool  # in a stream, at its end
    echo: bool
    logprobs: int | None  # likeliest tokens to list beside each token


def parse(body: bytes, model: str, most_choices: int) -> Request:
    """The request in a body. Refused: no JSON object of the API, another model than `model`, too many choices."""
    fields = _Fields(_object(body))
    if (name := fields.text("model")) not in (None, model):
        raise Refused(
            f"the model {name[:100]!r} is not served here; ask for {model!r}.",
            status=404, param="model", code="model_not_found",
        )  # fmt: skip
    prompts = _prompts(fields.take("prompt"))
    n = fields.whole("n", 1, 1, most_choices)
    if n * len(prompts) > most_choices:
        raise Refused(
            f"{len(prompts)} prompts with n = {n} are {n * len(prompts)} choices; this server takes {most_choices} "
            "in one request.", param="n",
        )  # fmt: skip
    if fields.whole("best_of", n, 1, 2**31) != n:
        raise Refused("best_of other than n is not offered; leave it out.", param="best_of")
    for name, neutral in NEUTRAL.items():
        if (value := fields.take(name)) not in neutral or isinstance(value, bool):
            raise Refused(f"{name} is not offered here; leave it out.", param=name)
    options = fields.take("stream_options")
    stream = fields.switch("stream")
    if options is not None and not (stream and isinstance(options, dict)):
        raise Refused("stream_options is an object that goes with stream = true.", param="stream_options")
    usage = _Fields(options or {}, "stream_options.").switch("include_usage")
    logprobs, echo = fields.whole("logprobs", None, 0, MOST_LOGPROBS), fields.switch("echo")
    if echo and logprobs is not None:
        raise Refused("log-probabilities of the prompt are not offered; leave out echo or logprobs.", param="logprobs")
    request = Request(
        prompts=prompts,
        tokens=fields.whole("max_tokens", None, 0, 2**31),
        sampling=Sampling(
            temperature=fields.number("temperature", 1.0, 0.0, 2.0),
            top_k=fields.whole("top_k", 0, 0, 2**31 - 1),
            top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        ),
        seed=fields.whole("seed", secrets.randbits(32), 0, 2**32 - 1),
        n=n,
        stops=_stops(fields.take("stop")),
        stream=stream,
        usage=usage,
        echo=echo,
        logprobs=logprobs,
    )
    fields.text("user")
    fields.done()
    try:
        request.sampling.check()
    except ConfigError as error:
        raise Refused(str(error)) from None
    return request


def _object(body: bytes) -> dict[str, Any]:
    def constant(name: str) -> None:
        raise ValueError(f"{name} is no number of JSON")

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=constant)
    except UnicodeDecodeError as error:
        raise Refused(f"the body is not UTF-8 (byte {error.start}); send JSON in UTF-8.") from None
    except RecursionError:
        raise Refused("the body is nested too deeply to be a request.") from None
    except ValueError as error:
        raise Refused(f"the body is not JSON ({not_json(error)[:200]}).") from None
    if not isinstance(value, dict):
        raise Refused("the body is not a JSON object; send one with a prompt.")
    return value


class _Fields:
    """A JSON object whose fields are taken one by one; `done` refuses what is left."""

    def __init__(self, fields: Mapping[str, Any], prefix: str = "") -> None:
        self._fields, self._prefix, self._known = dict(fields), prefix, [""]

    def take(self, name: str) -> Any:
        self._known.append(name)
        return self._fields.pop(name, None)

    def text(self, name: str) -> str | None:
        if (value := self.take(name)) is not None and not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def switch(self, name: str) -> bool:
        if (value := self.take(name)) is not None and not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return bool(value)

    def whole(self, name: str, default: Any, least: int, most: int) -> Any:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most:  # NaN is not either
            raise self._wrong(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def done(self) -> None:
        for name in self._fields:
            known = closest(name, self._known[1:])
            raise Refused(f"there is no field {self._prefix}{name[:100]!r}{known}.", param=name[:100])

    def _wrong(self, name: str, value: Any, wanted: str) -> Refused:
        name = self._prefix + name
        return Refused(f"{name} is {shown(value)}; it must be {wanted}.", param=name)


def shown(value: Any) -> str:
    """A value of a request in a message, cut short."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _prompts(value: Any) -> list[str | list[int]]:
    if isinstance(value, str):
        prompts: list[Any] = [value]
    elif isinstance(value, list) and value and all(_is_id(v) for v in value):
        prompts = [value]
    else:
        prompts = value if isinstance(value, list) else []
    if not prompts or not all(
        isinstance(p, str) or (isinstance(p, list) and p and all(map(_is_id, p))) for p in prompts
    ):
        raise Refused(
            "the prompt must be text, a list of texts, a list of token ids or a list of such lists.", param="prompt"
        )
    for prompt in prompts:
        _check_characters(prompt, "prompt")
    return prompts


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _stops(value: Any) -> list[str]:
    stops: Sequence[Any] = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) and s for s in stops):
        raise Refused("stop must be text or a list of texts, none of them empty.", param="stop")
    if len(stops) > MOST_STOPS or any(len(s) > MOST_STOP_LENGTH for s in stops):
        raise Refused(f"stop may hold {MOST_STOPS} texts of {MOST_STOP_LENGTH} characters each at most.", param="stop")
    for stop in stops:
        _check_characters(stop, "stop")
    return stops


def _check_characters(text: Any, param: str) -> None:
    try:
        _ = text.encode("utf-8") if isinstance(text, str) else None
    except UnicodeEncodeError:
        raise Refused(f"the {param} has half of a surrogate pair, which is no character.", param=param) from None
