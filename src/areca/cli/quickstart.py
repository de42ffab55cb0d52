"""`areca quickstart`: the whole story, on a laptop."""


def run(argv: list[str]) -> int:
    """Parses and runs `areca quickstart`."""
    from areca.cli.options import call

    return call(quickstart, argv, "areca quickstart")


def quickstart(*, out: str = "quickstart", minutes: float = 10.0, seed: int = 0, json: bool = False) -> int:
    """The whole story on real text, on a laptop, in about ten minutes.

    Gathers text that is installed with packages, trains a tokenizer and a ladder of small models, fits their scaling
    law, plans a larger run, trains it, and reports predicted against achieved. Interrupted, the same command goes on.

    Example: areca quickstart --out runs/quickstart --minutes 10

    Args:
        out: where everything goes.
        minutes: how large a ladder to train, in minutes of a two-core machine; picks sizes by arithmetic only.
        seed: of parameters, data order and the bootstrap.
        json: print report.json.
    """
    import signal
    import sys

    from areca.errors import Interrupted
    from areca.study.quickstart import Settings
    from areca.study.quickstart import quickstart as run_quickstart

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        summary = run_quickstart(out, Settings(minutes=minutes, seed=seed), say)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the runs in {out} are saved and the same command goes on.") from None
    if json:
        from areca.cli.options import print_json

        print_json(summary)
    else:
        print(f"report: {out}/report.html and {out}/report.json")
    return 0
