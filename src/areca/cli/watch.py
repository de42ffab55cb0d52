"""`areca watch`: a run or a family of runs as it is now, in the terminal."""


def run(argv: list[str]) -> int:
    """Parses and runs `areca watch`."""
    from areca.cli.options import call

    return call(watch, argv, "areca watch")


def watch(run: str, /, *, interval: float = 2.0, once: bool = False, json: bool = False) -> int:
    """Show a run, or all runs of a ladder, live: where it is, its loss, speed, time left, energy, what happened.

    RUN is a run directory, a ladder, a quickstart or a directory of runs; going on in any process, stopped, killed,
    finished or not yet begun. Only files are read. q or Ctrl-C leaves. Where the output is no terminal, it is printed
    once.

    Example: areca watch runs/first

    Args:
        run: the run or the directory of runs.
        interval: seconds between two looks.
        once: print the state once, as plain text.
        json: print the state once, for machines.
    """
    import sys

    from areca.cli.options import print_json
    from areca.watch import live

    live.check_interval(interval)
    if json:
        print_json(live.summary(run))
    elif once or not sys.stdout.isatty():
        print(live.once(run))
    else:
        live.watch(run, interval)
    return 0
