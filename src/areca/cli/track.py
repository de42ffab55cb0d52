"""`areca track`: sends the numbers of runs to a tracker afterwards."""


def run(argv: list[str]) -> int:
    """Parses and runs `areca track`."""
    from areca.cli.options import call

    return call(track, argv, "areca track")


def track(run: str, /, *, to: tuple[str, ...], project: str = "areca", json: bool = False) -> int:
    """Send the metrics.jsonl of a run to TensorBoard, W&B or trackio, all of it or what they do not have yet.

    RUN is a run directory, or one of several runs such as a ladder, finished or not. `areca train --track NAME` sends
    while it trains.

    Example: areca track runs/first --to tensorboard

    Args:
        run: the run, or the directory of runs.
        to: tensorboard, wandb, trackio; several may be given.
        project: that the runs are in there (W&B and trackio).
        json: print the result for machines.
    """
    from areca.cli.options import print_json
    from areca.track.send import send

    found = send(run, to, project)
    if json:
        print_json(found)
    else:
        for one in found:
            new = f"{one['rows']:,} steps" if one["rows"] else "nothing new"
            print(f"{one['run']} to {one['tracker']}: {new}, up to step {one['step']:,} ({one['at']})")
    return 0
