"""`areca serve`: a run's model behind OpenAI's completions API."""


def run(argv: list[str]) -> int:
    """Parses and runs `areca serve`."""
    from areca.cli.options import call

    return call(serve, argv, "areca serve")


def serve(
    run: str,
    /,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    batch: int = 16,
    queue: int = 256,
    drain: int = 30,
    step: int | None = None,
    store: str | None = None,
) -> int:
    """Answer OpenAI's completions API with a checkpoint of a run.

    RUN is a directory that `areca train` made. Any client of that API works with the address that is printed as its
    base URL and any key. Needs `pip install -e '.[serve]'`. SIGTERM or Ctrl-C stops it once the texts under way have
    ended.

    Example: areca serve runs/first --port 8000

    Args:
        run: the run directory.
        host: address to listen on; others than the loopback address let other machines in.
        port: of that address; 0 takes a free one.
        batch: texts whose tokens are drawn side by side.
        queue: texts that may wait for that; more are refused with status 429.
        drain: seconds that texts under way have to end when it is stopped.
        step: read the checkpoint of this step instead of the latest.
        store: directory of the token store, if it was moved since the run.
    """
    from areca import runtime
    from areca.cli.progress import say
    from areca.serve.server import serve

    runtime.prepare()
    serve(run, host=host, port=port, batch=batch, queue=queue, drain=drain, step=step, store=store, say=say)
    return 0
