"""A run whose steps are taken over islands, and what it does when one of them is lost or comes back.

The trajectory does not depend on who computes a shard, so a lost island costs no more than the step it was lost in:
what of it the others have not ended is discarded, its shards go to them, and the run goes on from the last step that
one of them has ended. A lost island's process is started again; it copies the state from a peer at the end of a step,
proves it by its digest, and takes shards again.
"""

import time
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from areca.errors import IslandError, TrainingError
from areca.model.layout import Layout
from areca.pathways.fleet import TRIES, Returning
from areca.train.evaluate import Evaluator
from areca.train.islands.evaluate import OnIslands
from areca.train.islands.over import OverIslands
from areca.train.islands.tenant import SAVING, Tenant
from areca.train.progress import Say
from areca.train.run import Run


class IslandsRun(Run):
    """The record, saves and judgement are those of any run."""

    over: OverIslands | None = None

    def __init__(self, *args: Any, tenant: Tenant | None = None) -> None:
        super().__init__(*args)
        self.tenant = tenant
        self.returning: list[Returning] = []
        self.say: Say = lambda _: None

    def _program(self, batch: int, layout: Layout, mesh: Any) -> Any:
        if self.over is None:
            lease = None if self.tenant is None else self.tenant.lease()
            self.over = OverIslands(self.config, self.abstract, layout, lease=lease)
        return self._traced(self.over.program(batch, self.config.data.context))

    def _traced(self, program: Any) -> Any:
        if (tracing := self.tracing) is None:
            return program
        return lambda *given: (tracing.before(self.step + 1), program(*given))[1]

    def _log(self, taken: Any, listener: Any) -> None:
        super()._log(taken, listener)
        if self.tracing is not None:
            self.tracing.read(taken.plan.step)

    def _evaluated(self) -> Any:
        """Of a run that shares islands of this process, on its own; it may be any of them."""
        assert self.over is not None
        params, island = self.abstract.params, self.over.islands[0]
        if self.tenant is None or island.remote:
            return params
        lies = NamedSharding(island.mesh, PartitionSpec())
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=lies), params)

    def _evaluator(self, layout: Layout, mesh: Any) -> Evaluator:
        """Islands of other processes evaluate, which have the parameters and the devices."""
        assert self.over is not None
        if self.over.islands[0].remote:
            return OnIslands(self.config, self.store, self.over, self.batches.order.mixture)
        return super()._evaluator(layout, mesh)

    def _parameters(self) -> Any:
        return self.state.futures[0] if isinstance(self.evaluate, OnIslands) else super()._parameters()

    def _place(self, state: Any) -> Any:
        assert self.over is not None
        return self.over.place(state)

    def _save(self, why: Any) -> None:
        """One run of the process at a time, until its files are there; the others' steps go on."""
        if self.tenant is None:
            return super()._save(why)
        with SAVING:
            super()._save(why)
            return self.checkpoints.wait()

    def _local(self) -> Any:
        return self.state.local()

    def _compile(self) -> float:
        """As of any run. Islands that are lost before the first step are started again with all the others."""
        for left in range(TRIES, 0, -1):
            try:
                started = super()._compile()
                if self.tenant is not None and self.meter is not None:
                    self.meter.share = 1 / self.tenant.runs
                return started
            except IslandError as error:
                if not (self.run_dir / "run.json").exists():  # a directory with events and without it is no run's
                    self.record.write_run_json(self.identity)
                if left == 1:
                    raise
                lost = ", ".join(
                    i.name for i in (self.over.islands if self.over else ()) if i.remote and i.error is not None
                )
                self.record.append_event("island_lost", step=0, island=lost, why=str(error), discarded=0, left=[])
                self.say(f"{self.run_dir}: {error} It was before the first step; all islands are started again.")
                over, self.over = self.over, None
                if over is not None:
                    over.close()
        raise AssertionError("unreachable")

    def begin(self, from_step: int | None, say: Say) -> None:
        """As of any run; what happens to islands before the first step is said."""
        self.say = say
        super().begin(from_step, say)

    def _go_on_without(self, error: IslandError, say: Say) -> None:
        """Discards what the islands that are left have not ended, and gives them the lost one's shards."""
        while True:
            try:
                self._drop_lost(error, say)
                return
            except IslandError as another:  # lost meanwhile
                if another is error:
                    raise
                error = another

    def _drop_lost(self, error: IslandError, say: Say) -> None:
        over = self.over
        assert over is not None
        left = over.living()
        lost = [i for i in over.islands if i.remote and i.error is not None]
        if not lost:
            raise error
        if not left:
            for island in lost:
                self.record.append_event("island_lost", step=self.step, island=island.name, why=str(island.error),
                                         discarded=0, left=[])  # fmt: skip
            raise TrainingError(f"all islands are lost; the last: {lost[-1].error} Go on with --resume.")
        states = [(self.step, self.state)]
        states += [(p.step - 1, metrics.before) for p, _, metrics in reversed(self.pending)]
        held = ((step, state, i) for step, state in states for i in left if over.holds(state, i))
        step, state, holder = next(held, (0, None, None))
        if state is None and any(i.error is not None for i in left):  # they were lost meanwhile
            self._drop_lost(error, say)
            return
        if state is None:
            raise TrainingError(f"no island that is left holds a whole state: {error} Go on with --resume.")
        self.state = over.keep(state, left, holder)
        discarded, self.step = self.step - step, step
        while self.pending and self.pending[-1][0].step > step:
            self.pending.pop()
        for island in lost:
            said = str(island.error)
            self.record.append_event("island_lost", step=step, island=island.name, why=said, discarded=discarded,
                                     left=[i.name for i in left])  # fmt: skip
            say(f"{self.run_dir}: {said} {len(left)} of {self.config.islands.count} islands go on from step {step}.")
            if self.config.islands.restart:
                self.returning.append(over.again(island))
        self._retrace()

    def _before_step(self, say: Say) -> None:
        """Takes in islands that have come back."""
        over = self.over
        for back in list(self.returning) if over is not None else ():
            if back.failed:
                self.returning.remove(back)
                self.record.append_event("island_not_back", step=self.step, island=back.name, why=back.failed)
                say(f"{self.run_dir}: {back.name} could not be started again: {back.failed}")
            elif back.island is not None:
                self._drain(None)
                self.returning.remove(back)
                self._join(back.island, say)

    def _join(self, island: Any, say: Say) -> None:
        over, started = self.over, time.perf_counter()
        assert over is not None
        try:
            self.state, digest = over.join(self.state, island)
        except IslandError:  # it, or the peer that it copied from
            if island.error is None:
                island.lose(f"{island.name} could not copy the state.")
            self.returning.append(over.again(island))
            if any(i.error is not None for i in over.islands):
                raise
            return
        self.record.append_event("island_joined", step=self.step, island=island.name, digest=digest,
                                 seconds=time.perf_counter() - started)  # fmt: skip
        say(f"{self.run_dir}: {island.name} joined after step {self.step}.")
        self._retrace()

    def _retrace(self) -> None:
        assert self.over is not None
        self.programs = {b: self._traced(self.over.program(b, self.config.data.context)) for b in self.programs}

    def __exit__(self, *error: object) -> None:
        for back in self.returning:
            back.drop()
        if self.over is not None:
            self.over.close()
            if self.tracing is not None:
                self.tracing.finish()
        super().__exit__(*error)
