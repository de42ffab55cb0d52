"""Whether islands can train a run, and how the processes of its islands are started."""

from areca.config import RunConfig
from areca.errors import ConfigError
from areca.pathways.elsewhere.processes import Setting
from areca.pathways.island import split_devices
from areca.train.identity import layout_of
from areca.train.islands.exchange import shard_size
from areca.train.islands.segments import Cut


def check(config: RunConfig) -> None:
    """ConfigError for islands that can't train this run."""
    i = config.islands
    if i.digest_every < 1:
        raise ConfigError(f"islands.digest_every is {i.digest_every}; it must be at least 1.")
    if i.shards < i.count:
        raise ConfigError(
            f"islands.shards is {i.shards} and there are {i.count} islands; each needs at least one shard of the batch."
        )
    if config.noise_parts:
        raise ConfigError(
            "the gradient noise scale is not measured over islands; for it train on one, with islands.count 1 and "
            "islands.shards 0."
        )
    if config.batch.accumulate > 1:
        raise ConfigError(
            f"batch.accumulate is {config.batch.accumulate}, and over islands each computes its shards one after "
            "another; set it to 1 and choose more islands.shards."
        )
    layout = layout_of(config)
    if i.on == "devices" and i.processes != 1:
        raise ConfigError(
            f"islands.processes is {i.processes}, and islands on devices are of this process; set islands.on to "
            "processes or ray."
        )
    setting_of(config)
    if i.on == "ray":
        from areca.pathways.elsewhere import rays

        rays.check(i.count, setting_of(config))
    if i.on == "devices":
        split_devices(i.count, (layout.data, layout.model))  # says so if there are fewer devices
    least = min(batch for _, batch in config.batch.ramp)
    if i.count > least:
        raise ConfigError(
            f"islands.count is {i.count} and a batch has {least} sequences; each island needs at least one of them."
        )
    cut = Cut(config.model, i.segments, layout, config.optimizer.z_loss, i.lengths)
    for _, batch in config.batch.ramp:
        cut.layout.check_batch("a shard of batch.ramp", shard_size(batch, i.shards))


def setting_of(config: RunConfig) -> Setting:
    """How the processes of a run's islands are started."""
    i = config.islands
    if not 1 <= i.deadline < 1e6:
        raise ConfigError(f"islands.deadline is {i.deadline}; give seconds, from 1 to 1,000,000.")
    if not 1e-3 <= i.chunk_mb <= 1024:
        raise ConfigError(f"islands.chunk_mb is {i.chunk_mb}; choose from 0.001 to 1024.")
    layout = layout_of(config)
    return Setting(
        (layout.data, layout.model), i.processes, config.threads, max(1, int(i.chunk_mb * 2**20)), i.flows,
        deadline=i.deadline,
    )  # fmt: skip
