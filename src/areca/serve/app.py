"""The routes: /v1/completions, /v1/models, /health and /metrics. Whatever goes wrong is answered in JSON."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from areca.serve.completions import Completion, Served
from areca.serve.engine import Engine
from areca.serve.protocol import Refused, parse

LARGEST_BODY = 4 << 20  # bytes
BODY_SECONDS = 30.0  # in which a body must have come
MOST_CHOICES = 128  # in one request


def make_app(model: Served, engine: Engine, energy: Callable[[], dict[str, Any] | None] = lambda: None) -> Starlette:
    """The server as an ASGI application. `energy` says what was used so far, for /metrics and /v1/models."""
    name, started = model.name, int(time.time())

    async def completions(http: HttpRequest) -> Response:
        request = parse(await _body(http), name, MOST_CHOICES)
        completion = Completion(request, model, engine)
        completion.submit()
        if request.stream:
            return _Stream(completion)
        try:
            answer = await _unless_gone(http, completion.whole())
        finally:
            completion.close()
        return Response(status_code=499) if answer is None else JSONResponse(answer)

    async def models(_: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [_card()]})

    async def one_model(http: HttpRequest) -> Response:
        if (asked := http.path_params["model"]) != name:
            raise Refused(f"the model {asked[:100]!r} is not served here; this server has {name!r}.", status=404,
                          param="model", code="model_not_found")  # fmt: skip
        return JSONResponse(_card())

    def _card() -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "areca",
            "context": model.context,
            "step": model.step,
            "footprint": energy(),
        }

    async def health(_: HttpRequest) -> Response:
        if engine.failure:
            raise Refused(
                f"the engine has failed ({engine.failure}); start the server again.", status=503, code="failed"
            )
        return JSONResponse({"status": "ok", **engine.state()})

    async def metrics(_: HttpRequest) -> Response:
        return PlainTextResponse(_prometheus(engine.state(), energy()), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/v1/models/{model:path}", one_model),
            Route("/health", health),
            Route("/metrics", metrics),
        ],
        exception_handlers={Refused: _refused, HTTPException: _http, Exception: _fault, ClientDisconnect: _gone},
    )


class _Stream(StreamingResponse):
    """Server-sent events whose texts are cancelled when the client has gone, or never came to read."""

    def __init__(self, completion: Completion) -> None:
        super().__init__(completion.stream(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._completion = completion

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._completion.close()


async def _body(http: HttpRequest) -> bytes:
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("the body must be JSON; send it with Content-Type: application/json.", status=415)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in http.stream():
                body += part
                if len(body) > LARGEST_BODY:
                    raise Refused(f"the body is larger than {LARGEST_BODY >> 20} MiB.", status=413)
    except TimeoutError:
        raise Refused(f"the body did not come within {BODY_SECONDS:g} s.", status=408) from None
    return bytes(body)


async def _unless_gone(http: HttpRequest, answer: Any) -> Any:
    """What `answer` comes to; None if the client goes away first."""
    work, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _refused(_: HttpRequest, refused: Exception) -> Response:
    assert isinstance(refused, Refused)
    headers = {"Retry-After": str(refused.retry)} if refused.retry else None
    return JSONResponse(refused.body(), refused.status, headers)


async def _http(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    says = {404: f"there is nothing at {http.url.path[:200]}", 405: f"{http.url.path} does not take {http.method}"}
    refused = Refused(f"{says.get(error.status_code, error.detail)}.", status=error.status_code)
    return JSONResponse(refused.body(), error.status_code, error.headers)


async def _fault(_: HttpRequest, error: Exception) -> Response:
    return JSONResponse(Refused("a fault of the server's; its log has more.", status=500).body(), 500)


async def _gone(_: HttpRequest, error: Exception) -> Response:
    return Response(status_code=499)


def _prometheus(state: dict[str, Any], footprint: dict[str, Any] | None) -> str:
    """The text format that Prometheus reads."""
    lines = []
    for key, value in state.items():
        kind = "gauge" if key in ("running", "waiting") else "counter"
        name = f"areca_{key}" if kind == "gauge" else f"areca_{key}_total"
        lines += [f"# TYPE {name} {kind}", f"{name} {value}"]
    if footprint and (kwh := footprint["kwh_per_1000_tokens"]["value"]) is not None:
        kind = json.dumps(footprint["kwh_per_1000_tokens"]["kind"])
        lines += ["# TYPE areca_kwh_per_1000_tokens gauge", f"areca_kwh_per_1000_tokens{{kind={kind}}} {kwh:g}"]
    return "\n".join(lines) + "\n"
