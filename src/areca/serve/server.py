"""`areca serve`: a run's model behind HTTP until it is told to stop."""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from areca import runtime
from areca.errors import ConfigError, install
from areca.footprint.planned import in_words, per_1000_tokens
from areca.footprint.regions import here
from areca.footprint.sessions import Watch
from areca.model.lanes import Batch
from areca.model.prepared import prepare
from areca.serve.completions import Served
from areca.serve.engine import Engine
from areca.serve.protocol import MOST_LOGPROBS
from areca.train.restore import load_model

STOP_SECONDS, LAST_WORDS = 10.0, 1.0  # for the tokens being drawn to end; for clients to read that their text has
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    run_dir: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    batch: int = 16,
    queue: int = 256,
    drain: int = 30,
    step: int | None = None,
    store: Path | str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serves until SIGINT or SIGTERM; what runs then has `drain` seconds to end. A second signal ends it at once.
    A stream that is cut off ends with an error event, another answer is the error.

    Args:
        port: 0 takes a free one, which is said.
        batch: texts whose tokens are drawn side by side.
        queue: texts that may wait for that.

    Raises:
        ConfigError: a port that can't be had, starlette or uvicorn not there, a number out of range.
        CheckpointError, DataError: as `load_model`.
    """
    _check(port=(port, 0, 65535), batch=(batch, 1, 1024), queue=(queue, 1, 1_000_000), drain=(drain, 0, 86_400))
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"areca serve needs {error.name}; install it with {install('serve')}.") from None
    place = here()
    with _socket(host, port) as listening:
        say(f"reading {run_dir} and compiling, which takes longest the first time.")
        model, lanes = _load(run_dir, step, store, batch)
        engine = Engine(lanes, model.tokenizer, queue)
        cores = runtime.available_cores()
        with Watch(runtime.topology(cores), 1, cores) as watch:

            def energy() -> dict[str, Any] | None:
                tokens = engine.counts["tokens"]
                return per_1000_tokens(watch.so_far(place), tokens) if tokens else None

            engine.start()
            try:
                _listen(model, engine, energy, listening, drain, say)
            finally:
                engine.stop()
        if engine.counts["tokens"]:
            counts = engine.counts
            say(f"{counts['texts']:,} texts, {counts['tokens']:,} tokens; idling included, "
                + in_words(per_1000_tokens(watch.footprint(place), counts["tokens"])))  # fmt: skip


def _load(run_dir: Path | str, step: int | None, store: Path | str | None, lanes: int) -> tuple[Served, Batch]:
    """The model, and an empty batch with its programs compiled, for texts up to the context."""
    model = load_model(run_dir, step, store)
    config, context = model.config.model, model.config.data.context
    vocabulary = min(model.tokenizer.vocab_size, config.vocab_size)
    weights = prepare(config, model.params, vocabulary)
    batch = Batch(config, weights, lanes=lanes, context=context, stop=model.tokenizer.eod_id)
    batch.compile([1 << i for i in range(1, context.bit_length())] + [context], (0, MOST_LOGPROBS))
    return Served(Path(run_dir).resolve().name, model.step, model.tokenizer, context, vocabulary), batch


def _listen(
    model: Served,
    engine: Engine,
    energy: Callable[[], dict[str, Any] | None],
    listening: socket.socket,
    drain: int,
    say: Callable[[str], None],
) -> None:
    import uvicorn

    from areca.serve.app import make_app

    class Server(uvicorn.Server):
        insisted = False

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Ours, which end with the server: uvicorn would raise the signal again once it has stopped."""
            old = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
            try:
                yield
            finally:
                for s, handler in old.items():
                    signal.signal(s, handler)

        def handle_exit(self, sig: int, frame: Any) -> None:
            """The first signal asks, the second insists, a third does not wait for the clients' last words either."""
            self.force_exit = self.insisted
            self.insisted, self.should_exit = self.should_exit, True

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            running = engine.state()["running"] + engine.state()["waiting"]
            say(f"stopping; {running} texts have {drain} s to end." if running else "stopping.")
            cut = asyncio.ensure_future(self._cut_off())
            try:
                await super().shutdown(sockets)
            finally:
                cut.cancel()

        async def _cut_off(self) -> None:
            """Ends the texts that are left, which their clients are told, when time is up or the user insists."""
            until = time.monotonic() + drain
            while not self.insisted and time.monotonic() < until:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(engine.stop, STOP_SECONDS)
            await asyncio.sleep(LAST_WORDS)
            self.force_exit = True
            for connection in list(self.server_state.connections):  # whose clients have not read it by now
                connection.transport.abort()

    host, port = listening.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    say(f"{model.name} (step {model.step}) is at http://{address}:{port}/v1; Ctrl-C stops it.")
    if host not in LOOPBACK:
        say(f"{host} is not the loopback address: whoever reaches this machine can use the model; there is no key.")
    settings = uvicorn.Config(
        make_app(model, engine, energy), log_level="error", access_log=False, lifespan="off",
        timeout_graceful_shutdown=None, server_header=False, ws="none", loop="asyncio", http="h11",
    )  # fmt: skip
    filters = {"uvicorn.error": _is_no_cut, "asyncio": _is_no_gone}
    for name, keep in filters.items():
        logging.getLogger(name).addFilter(keep)
    try:
        Server(settings).run(sockets=[listening])
    finally:
        for name, keep in filters.items():
            logging.getLogger(name).removeFilter(keep)


def _is_no_gone(record: logging.LogRecord) -> bool:
    """False for what was still being written to a client that has gone, which is no fault of the server's."""
    return "socket.send() raised exception" not in record.getMessage()


def _is_no_cut(record: logging.LogRecord) -> bool:
    """False for the traceback of an answer that was cut off as the server ended, which is no fault."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def _socket(host: str, port: int) -> socket.socket:
    """A listening socket, taken before the model is loaded; ConfigError if it can't be had."""
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise ConfigError(
            f"{host}:{port} can't be listened on ({error.strerror or error}); give another --host or --port."
        ) from None
    return listening


def _check(**numbers: tuple[int, int, int]) -> None:
    for name, (value, least, most) in numbers.items():
        if not least <= value <= most:
            raise ConfigError(f"--{name} is {value}; it must be from {least} to {most}.")
