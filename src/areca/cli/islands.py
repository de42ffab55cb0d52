"""`areca islands`: measures the islands of a configuration."""


def run(argv: list[str]) -> int:
    """Parses and runs `areca islands`."""
    from areca.cli.options import call
    from areca.cli.settings import split

    argv, given = split(argv)
    return call(islands, argv, "areca islands", given=given)


def islands(
    config: str,
    /,
    *,
    islands: int = 2,
    islands_on: str = "devices",
    json: bool = False,
    given: dict[str, str] | None = None,
) -> int:
    """What a training step over islands is made of, and which segments its backward pass should have.

    Times the programs of one shard and the link between the first two islands, trains nothing and writes nothing. A
    segment's gradients travel while the next ones are computed, and each segment costs what starting a program costs:
    long ones first and short ones last hide most. They are part of a run's numbers, so write those that pay into its
    [islands].

    Example: areca islands run.toml --islands 2 --islands-on processes

    Args:
        config: the run's configuration, .toml or .json.
        islands: how many.
        islands_on: devices of this process, processes of this machine, or ray.
        json: print everything for machines.
    """
    from areca.cli.options import print_json
    from areca.cli.settings import load
    from areca.config import replace
    from areca.pathways.fleet import kind_of
    from areca.train.islands.tuning import propose

    on = kind_of(islands_on)
    settings = load(config, given or {})
    found = propose(replace(settings, islands=replace(settings.islands, count=islands, on=on)))
    if json:
        print_json(found.to_json())
    else:
        print(found.describe())
        print(f"in the configuration: [islands] lengths = {list(found.best)}")
    return 0
