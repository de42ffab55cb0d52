"""A run from its configuration to result.json: start or resume, take the steps, finish.

The trajectory is a function of (config, store, versions, topology); `areca.train.run` has how the steps are taken.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areca import runtime
from areca.config import RunConfig
from areca.data.store import TokenStore
from areca.train import anneal
from areca.train.away import copies
from areca.train.away.copying import copying
from areca.train.identity import (
    Resume,
    as_before,
    check,
    identify,
    look,
    parameters_sha256,
    refuse_other,
    with_documents,
    with_islands,
    with_pipeline,
)
from areca.train.islands.tracing import Tracing, Windows, check_within
from areca.train.islands.tracing import check as check_windows
from areca.train.models import start_of
from areca.train.profiling import profiled
from areca.train.progress import Listener, Progress, Say
from areca.train.record import RunRecord
from areca.train.run import Run, enough_memory
from areca.train.signals import stop_requests

if TYPE_CHECKING:
    from areca.train.islands.tenant import Tenant


def train(
    config: RunConfig,
    run_dir: Path | str,
    *,
    resume: Resume = "never",
    from_step: int | None = None,
    labels: dict[str, Any] | None = None,
    listener: Listener | None = None,
    say: Say = lambda _: None,
    trace_steps: Windows = (),
    profile_steps: Windows = (),
    copy_to: str = "",
    tenant: "Tenant | None" = None,
) -> dict[str, Any]:
    """Trains `config` in `run_dir` and returns the content of result.json.

    Args:
        resume: "never" refuses a directory that holds a run; "must" goes on and refuses one that holds none;
            "auto" does what fits and says which. A finished run is returned as it is.
        from_step: resume from this checkpoint instead of the latest; later ones are dropped.
        labels: copied into run.json and result.json, for example the budget of a ladder's rung.
        listener: called after each step with Progress.
        say: called with a sentence for whatever a user should know (resumed where, topology changed, ...).
        trace_steps: over islands: record these steps, (first, last) each, in trace.json.
        profile_steps: profile these steps, (first, last) each, with jax.profiler, in profile/ of the run.
        copy_to: a URL to which each checkpoint is copied with all that the run needs to go on from it, in the
            background; a run that is not in `run_dir` any more is fetched from there to go on.
        tenant: the run is one of several of this process, which share islands: where it has its own from.

    Raises:
        ConfigError, DataError: settings that can't be used, before anything is written.
        CheckpointError: nothing to resume, a changed configuration (says what), a damaged checkpoint.
        TrainingError: the loss spiked more often than the guard may go back, or it is not finite and there is no
            guard; the last checkpoint is from before.
        Interrupted: SIGINT or SIGTERM; the state is saved.
    """
    run_dir = Path(run_dir)
    lost = copies.settle(copy_to, run_dir, resume, from_step) if copy_to else None
    if lost is None:
        copies.sweep(run_dir)
    begun = lost or run_dir  # where run.json is
    if resume != "never":
        config = as_before(config, begun)
    config = with_pipeline(with_islands(config))
    threads = runtime.prepare(config.threads, devices=config.devices_here)
    config = replace(config, model=config.model.resolved(), threads=threads)
    if config.islands.on == "ray":
        from areca.pathways.elsewhere import rays

        rays.connect()  # before jax starts: Ray starts processes
    store = TokenStore.open(config.data.store)
    config = with_documents(config, store)
    check(config, store)
    identity = identify(config, store, threads, labels or {})
    if (start := start_of(config, store, begun)) is not None:
        identity["start"] = start
    if tenant is not None:
        identity["shared"] = tenant.describe()
    if lost is not None:
        refuse_other(lost, identity, copy_to)  # before anything is fetched
        copies.bring_back(copy_to, run_dir, from_step, say)
    done = look(run_dir, identity, resume, say)
    if done is not None and from_step is None:
        for name, steps in (("--trace-steps", trace_steps), ("--profile-steps", profile_steps)):
            if steps:
                say(f"{run_dir} has ended, so there is nothing of {name} to record.")
        with copying(copy_to, run_dir, lambda *_, **__: None, say):
            return done
    plan = anneal.plan(config)
    check_windows(trace_steps, config.islands.shards, len(plan))
    check_within(profile_steps, len(plan), "--profile-steps")
    batches = anneal.batches(config, store, plan)  # a corpus smaller than a batch is refused before anything is written
    with (
        stop_requests(tenant and tenant.stop) as stop,
        RunRecord(run_dir) as record,
        _kind(config, tenant)(config, store, batches, plan, run_dir, record, identity) as run,
        enough_memory(config),
    ):
        run.tracing = Tracing(trace_steps, run) if trace_steps else None
        run.begin(from_step, say)
        run.track(say)
        with copying(copy_to, run_dir, record.append_event, say) as run.copying:
            with profiled(profile_steps, run_dir) as run.profiling:
                run.loop(stop, listener, say)
            result = run.finish(labels or {})
        if run.companions is not None:
            run.companions.end()
    for watch in (run.tracing, run.profiling):
        if watch is not None:
            say(watch.said())
    return result


def _kind(config: RunConfig, tenant: "Tenant | None") -> Callable[..., "Run"]:
    """How the steps of a run are taken."""
    if config.pipeline.microbatches:
        from areca.train.pipeline.run import PipelineRun

        return PipelineRun
    if not config.islands.shards and tenant is None:
        return Run
    from areca.train.islands.run import IslandsRun

    return partial(IslandsRun, tenant=tenant)


__all__ = ["Listener", "Progress", "Resume", "parameters_sha256", "train"]
