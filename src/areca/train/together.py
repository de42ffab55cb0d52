"""Several runs as one program: the training step under `jax.vmap` over runs that differ in seed and learning rate.

A small model leaves an accelerator idle, and so does each of several; stacked along a leading axis they fill it. Every
run keeps a run directory of its own, as complete as that of a run alone, and agrees with it to rounding, not to the
bit: run.json and result.json say so under `together`. Its seconds, speed and energy are its share of the program's.

All runs are at the same step always. What is saved is one run's state, so a checkpoint serves a run alone as well. A
group that was killed goes on from the last step that every run has saved, with the same bits. A run that is not finite
any more keeps its place in the program, since other bits would follow from another number of places, and is not
recorded from there on.

Legend: R runs, B sequences, S context + 1.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from areca import runtime
from areca.config import RunConfig, differences, to_dict
from areca.data.batches import Batches
from areca.data.store import TokenStore
from areca.errors import ConfigError, Diverged
from areca.train import anneal, schedules
from areca.train.checkpoint import Checkpoints
from areca.train.identity import check, diverged_before, identify, look, with_documents
from areca.train.progress import Listener, Say
from areca.train.record import RunRecord
from areca.train.run import Run, enough_memory
from areca.train.signals import stop_requests

if TYPE_CHECKING:
    from areca.model.layout import Layout
    from areca.train.lines import Taken

MAY_DIFFER = ("seed", "data.seed", "optimizer.learning_rate")


@dataclass(frozen=True)
class Member:
    """One of the runs; the arguments of `areca.train.loop.train`."""

    config: RunConfig
    run_dir: Path
    labels: dict[str, Any]


def train_together(
    runs: Sequence[Member], *, listener: Listener | None = None, say: Say = lambda _: None
) -> list[dict[str, Any] | Diverged]:
    """Trains all `runs`, or goes on with them, and returns for each the content of its result.json.

    A run that diverged has its Diverged instead, and does not touch the others. `listener` hears of each run's steps.

    Raises:
        ConfigError: runs that can't be one program (`check_alike`), and what `train` raises for one of them.
        Interrupted: SIGINT or SIGTERM; all states are saved.
    """
    check_alike([r.config for r in runs])
    threads = runtime.prepare(runs[0].config.threads)
    store = TokenStore.open(runs[0].config.data.store)
    outcomes: list[dict[str, Any] | Diverged | None] = []
    prepared: list[tuple[RunConfig, dict[str, Any]]] = []
    for run in runs:
        config = with_documents(replace(run.config, model=run.config.model.resolved(), threads=threads), store)
        check(config, store)
        identity = identify(config, store, threads, run.labels) | {"together": describe(len(runs))}
        outcomes.append(look(run.run_dir, identity, "auto", say) or diverged_before(run.run_dir, config))
        prepared.append((config, identity))
    if all(outcomes):
        return cast(list[dict[str, Any] | Diverged], outcomes)

    config = prepared[0][0]
    plan = anneal.plan(config)
    orders = {c.data.seed: anneal.batches(c, store, plan) for c, _ in prepared}
    with ExitStack() as stack:
        stop = stack.enter_context(stop_requests())
        places: dict[int, _One] = {}  # finished runs have none: no step is left for the others then
        for i, (run, (config, identity)) in enumerate(zip(runs, prepared, strict=True)):
            if not isinstance(outcomes[i], dict):
                record = stack.enter_context(RunRecord(run.run_dir))
                one = _One(config, store, orders[config.data.seed], plan, run.run_dir, record, identity)
                one.labels, one.lost = run.labels, cast(Diverged | None, outcomes[i])
                places[i] = one
        group = stack.enter_context(_Group(list(places.values())))
        stack.enter_context(enough_memory(config, len(places)))
        if len(places) < len(runs):
            say(f"{len(runs) - len(places)} of {len(runs)} runs of one program are finished; the others go on.")
        group.begin(None, say)
        group.loop(stop, listener, say)
        done = group.results()
    for i, one in places.items():
        outcomes[i] = one.lost or done[one.run_dir]
    return cast(list[dict[str, Any] | Diverged], outcomes)


def describe(runs: int) -> dict[str, Any]:
    """What run.json and result.json say under `together`."""
    return {
        "runs": runs,
        "says": f"one of {runs} runs of one program (jax.vmap): agrees with the run alone to rounding, not to the bit;"
        " seconds, speed and energy are its share",
    }


def check_alike(configs: Sequence[RunConfig]) -> None:
    """Raises ConfigError unless the runs can be one program: all alike but for MAY_DIFFER, unguarded, on one device."""
    first = configs[0]
    for other in configs[1:]:
        found = differences(to_dict(first), to_dict(other))
        wrong = [d for d in found if d.partition(":")[0] not in MAY_DIFFER]
        if wrong:
            raise ConfigError(
                f"these runs can't be one program because they differ in {'; '.join(wrong[:3])}; only"
                f" {', '.join(MAY_DIFFER)} may differ."
            )
    if first.guard.enabled:
        raise ConfigError(
            "guard.enabled is True, but runs of one program can't go back one by one; set it to false or train them"
            " one at a time."
        )
    if first.init_from:
        raise ConfigError(
            f"init_from is {first.init_from}, but runs of one program draw their parameters from the seed; train them "
            "one at a time."
        )
    if first.islands.count > 1 or first.islands.shards:
        raise ConfigError(
            f"islands asks for {first.islands.count} of them and {first.islands.shards} shards, but several runs in one"
            " program are on one device; train them one at a time."
        )
    if first.pipeline.microbatches:
        raise ConfigError(
            f"pipeline asks for {first.pipeline.microbatches} microbatches on {first.pipeline.stages} stages, but"
            " several runs in one program are on one device; train them one at a time."
        )
    if first.parallel.data * first.parallel.model > 1:
        raise ConfigError(
            f"parallel asks for {first.parallel.data} x {first.parallel.model} devices, but several runs in one"
            " program are on one; train them one at a time."
        )


class _One(Run):
    """One run of a group: its own record, checkpoints and judgement, the group's programs."""

    group: "_Group"
    labels: dict[str, Any]
    lost: Diverged | None = None

    def __enter__(self) -> "_One":
        c = self.config.checkpoint
        # Two at least: when some runs have saved a step and a kill comes, the others have the one before.
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", max(2, c.keep_last), c.keep_every_steps)
        return self

    def _compile(self) -> float:
        g = self.group
        self.machine, self.abstract, self.evaluate = g.machine, g.abstract, g.evaluate
        self.power, self.meter = g.power, g.meter and g.meter.shared(len(g.places))
        self.init_state = lambda: g.first(np.uint32(self.config.seed))
        return time.perf_counter() - g.compile_seconds / len(g.places)


class _Group(Run):
    """Several runs in progress as one whose arrays have a leading axis R; lines, events and saves go to its members."""

    def __init__(self, places: list[_One]) -> None:
        first, self.places = places[0], places
        super().__init__(
            first.config,
            first.store,
            _Stacked([one.batches for one in places]),
            first.plan,
            first.run_dir,
            cast(Any, _Every(lambda: [m.record for m in self.members])),
            first.identity,
        )
        for one in places:
            one.group = self

    @property
    def members(self) -> list[_One]:
        """The runs that are still recorded."""
        return [one for one in self.places if one.lost is None]

    def __enter__(self) -> "_Group":
        with ExitStack() as stack:
            for one in self.places:
                stack.enter_context(one)
            self.opened = stack.pop_all()
        self.checkpoints = cast(Any, _Every(lambda: [m.checkpoints for m in self.members]))
        return self

    def __exit__(self, *_: object) -> None:
        if self.meter is not None:
            self.meter.close()
        self.opened.close()

    def begin(self, from_step: int | None, say: Say) -> None:
        """Brings all runs to the last step that each has saved, compiles, and stacks their states."""
        import jax
        import jax.numpy as jnp

        from areca.train.step import trace_first_state

        self._align(say)
        c = self.config
        self.first = trace_first_state(c.model, c.optimizer).lower().compile()
        self.pick = jax.jit(lambda state, i: jax.tree.map(lambda x: x[i], state))
        started = self._compile()
        self.compile_seconds = time.perf_counter() - started
        for one in self.members:
            one.begin(None, say)
            self.step = one.step
        states = [one.state if one.lost is None else self.first(np.uint32(one.config.seed)) for one in self.places]
        self.state = jax.jit(lambda *s: jax.tree.map(lambda *x: jnp.stack(x), *s))(*states)
        for one in self.places:
            one.state = None
        jax.block_until_ready(self.state)

    def _align(self, say: Say) -> None:
        """Has every run forget what it saved after the last step that all have saved."""
        steps = [{0, *(e.step for e in m.checkpoints.entries())} for m in self.members]
        common = max(set.intersection(*steps)) if steps else 0
        ahead = [m for m in self.members if (e := m.checkpoints.latest()) is not None and e.step > common]
        for one in self.members if common else []:
            one.checkpoints.verify(common)  # of all, before any forgets
        for one in ahead:
            one.checkpoints.forget(common)
        if ahead:
            where = f"step {common}, the last that all runs have saved" if common else "the start"
            say(f"{', '.join(m.run_dir.name for m in ahead)}: back to {where}, since they are one program.")

    def _program(self, batch: int, layout: "Layout", mesh: Any) -> Any:
        return compile_together(self.config, self.abstract, batch, len(self.places))

    def _rate(self, p: schedules.StepPlan) -> list[float]:
        return [one._rate(p) for one in self.places]

    def _log(self, taken: "Taken", listener: Listener | None) -> None:
        share = taken.seconds / len(self.members)
        for one, rate, metrics in zip(self.places, taken.rate, taken.metrics, strict=True):
            if one.lost is None:
                try:
                    one._log(taken._replace(rate=rate, metrics=metrics, seconds=share), listener)
                except Diverged as error:
                    one.lost = error
        self.steady = True
        if not self.members:
            raise _AllLost

    def loop(self, *arguments: Any) -> None:
        with suppress(_AllLost):
            super().loop(*arguments)

    def _writing(self, since: float) -> int | None:
        return next((w for m in self.members if (w := m._writing(since)) is not None), None)

    def _interval(self) -> float:
        return sum(m._interval() for m in self.members)  # the cost of all their saves over the time of all

    def _save(self, why: Literal["interval", "end", "stop"]) -> None:
        self.checkpoints.wait()  # so that no run is two saves ahead of another
        for one in self._with_states():
            one._save(why)
        self._restart_clock()
        self.last_save = self.last_read

    def _evaluate(self, step: int) -> dict[str, Any]:
        for one in self._with_states():
            try:
                one._evaluate(step)
            except Diverged as error:
                one.lost = error
        self._restart_clock()
        return {}

    def results(self) -> dict[Path, dict[str, Any]]:
        """Finishes every run that did not diverge; no result is written before all have saved their last step."""
        self.checkpoints.wait()
        made = {}
        for one in self._with_states():
            try:
                made[one.run_dir] = one.finish(one.labels)
            except Diverged as error:
                one.lost = error
        return made

    def _with_states(self) -> Iterator[_One]:
        """Each run that is still recorded, for as long as it has its own state."""
        for i, one in enumerate(self.places):
            if one.lost is None:
                one.state, one.step = self.pick(self.state, np.int32(i)), self.step
                yield one
                one.state = None


def compile_together(config: RunConfig, state: Any, batch: int, runs: int) -> Any:
    """The step of `runs` states of the shapes of `state`, compiled: [R, ...], tokens [R, B, S], rates [R].

    Returns the next states and metrics [R, M]; the states are donated.
    """
    import jax
    import jax.numpy as jnp

    from areca.train.step import train_step

    parts = {"noise_parts": config.noise_parts, "accumulate": config.batch.accumulate}
    step = jax.vmap(partial(train_step, config.model, config.optimizer, **parts))
    stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((runs, *a.shape), a.dtype), state)
    tokens = jax.ShapeDtypeStruct((runs, batch, config.data.context + 1), jnp.int32)
    rates = jax.ShapeDtypeStruct((runs,), jnp.float32)
    return jax.jit(step, donate_argnums=0).lower(stacked, tokens, rates).compile()


class _AllLost(Exception):
    """Unwinds from the step at which the last run of a group diverged."""


class _Stacked(Batches):
    """The batches of several runs as one array [R, B, S]; runs of one order share theirs."""

    def __init__(self, parts: list[Batches]) -> None:
        self.parts, self.order = parts, parts[0].order

    def get(self, start: int, size: int) -> np.ndarray:
        made = {part: part.get(start, size) for part in dict.fromkeys(self.parts)}
        return np.stack([made[part] for part in self.parts])


class _Every:
    """Calls a method of each of some objects."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: [getattr(o, name)(*args, **kwargs) for o in self._objects()]


__all__ = ["Member", "check_alike", "compile_together", "describe", "train_together"]
