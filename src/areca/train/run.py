"""One run in progress: its steps, what is logged and judged of them, evaluations, saves, the way back from a spike.

What a run keeps beside the TrainState are integers (step, tokens, ranges of examples to skip), so one that was killed
at any instant goes on from its last checkpoint with the same bits: metrics past the checkpoint are cut off and computed
again. A spike takes the same way back, past other examples. Runs over islands and in stages take their steps otherwise.
"""

import collections
import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from areca import runtime
from areca.config import RunConfig
from areca.data.batches import Batches
from areca.data.store import TokenStore
from areca.errors import Diverged, Interrupted, IslandError, TrainingError
from areca.files import write_json
from areca.footprint.planned import per_1000_tokens
from areca.footprint.regions import here
from areca.footprint.sessions import Watch, expected_power, sessions_of, start_meter
from areca.model.counts import count_params
from areca.track.companions import Companions
from areca.train import anneal, guard, rewinds, schedules
from areca.train.away.copying import Copying
from areca.train.checkpoint import Checkpoints
from areca.train.identity import (
    layout_of,
    parameters_sha256,
)
from areca.train.islands.tracing import Tracing
from areca.train.models import first_state
from areca.train.profiling import Profiling
from areca.train.progress import Listener, Say
from areca.train.record import RunRecord, read_evaluations, read_events, read_metrics
from areca.train.result import result_of
from areca.train.saves import Saves, state_bytes
from areca.train.signals import Stop

if TYPE_CHECKING:
    from areca.footprint.meter import Meter
    from areca.model.layout import Layout
    from areca.train.evaluate import Evaluator
    from areca.train.lines import Taken

RUN_AHEAD = 8  # steps enqueued before their metrics are read (more than 32 with a collective hang XLA on the CPU)


class Spiked(Exception):
    """Unwinds from the step whose metrics were read to the loop that goes back."""

    def __init__(self, spike: guard.Spike) -> None:
        super().__init__()
        self.spike = spike


class Run:
    """The moving parts of one run in progress."""

    state: Any  # TrainState
    meter: "Meter | None" = None
    tracing: Tracing | None = None
    profiling: Profiling | None = None
    companions: Companions | None = None
    copying: Copying | None = None

    def __init__(
        self,
        config: RunConfig,
        store: TokenStore,
        batches: Batches,
        plan: list[schedules.StepPlan],
        run_dir: Path,
        record: RunRecord,
        identity: dict[str, Any],
    ) -> None:
        self.config, self.store, self.batches, self.plan = config, store, batches, plan
        self.run_dir, self.record, self.identity = run_dir, record, identity
        self.pending: collections.deque[tuple[schedules.StepPlan, float, Any]] = collections.deque()
        self.compile_seconds = 0.0
        self.seconds = 0.0
        self.last_save: float | None = None
        self.steady = False  # whether the next step to be read follows another without a save or an evaluation between
        self.step = 0
        self.due: schedules.StepPlan | None = None  # a step after which something may be left to do

    def __enter__(self) -> "Run":
        c = self.config.checkpoint
        g = self.config.guard
        reach = g.rewind_steps + g.patience if g.enabled else 0
        self.checkpoints = Checkpoints(self.run_dir / "checkpoints", c.keep_last, c.keep_every_steps, reach=reach)
        return self

    def __exit__(self, *_: object) -> None:
        if self.companions is not None:
            self.companions.release()
        if self.meter is not None:
            self.meter.close()
        self.checkpoints.close()

    def track(self, say: Say) -> None:
        """Has the trackers that were asked for follow the run, each from a process of its own."""
        to = self.config.track
        if to.to:
            self.companions = Companions(to.to, self.run_dir, to.project, self.record.append_event, say)

    def begin(self, from_step: int | None, say: Say) -> None:
        """Compiles, then makes the first state or restores one, and brings the record to that step."""
        from areca.train.lines import Pace

        if from_step is not None:
            self.checkpoints.verify(from_step)  # before anything is dropped
            (self.run_dir / "result.json").unlink(missing_ok=True)
            self.checkpoints.rewind(from_step)
        self.rewinds = rewinds.settle(self.run_dir, self.checkpoints, forget=from_step is not None)
        if (entry := self.checkpoints.latest()) is not None:
            self.checkpoints.verify(entry)  # before the compilation, so that damage is said at once
        if self.checkpoints.missing:
            say(f"{self.run_dir} has lost the checkpoints of steps {', '.join(map(str, self.checkpoints.missing))}.")
        resumed = bool(read_metrics(self.run_dir)) or entry is not None

        started = self._compile()
        self._load()
        if not (self.run_dir / "run.json").exists():
            self.record.write_run_json(self.identity)
        self.compile_seconds = time.perf_counter() - started
        past, rows = read_events(self.run_dir), read_metrics(self.run_dir)
        self.saves, self.state_bytes, self.pace = Saves(rows, past), state_bytes(self.abstract), Pace()
        self.sessions = sessions_of(past)
        abandoned = sum(e["seconds"] for e in past if e["event"] == "rewind")
        self.seconds = sum(row["seconds"] for row in rows) + abandoned
        self.record.append_event("resume" if resumed else "start", step=self.step, peak_flops=self.machine.peak,
                                 peak_source=self.machine.source, compile_seconds=self.compile_seconds,
                                 power=self.power)  # fmt: skip
        if (untold := rewinds.untold(self.rewinds, past)) is not None:
            self._tell(untold, 0.0)
        if resumed:
            what = "its checkpoint" if entry is not None else "the start (it has no checkpoint yet)"
            say(f"{self.run_dir} goes on from {what} at step {self.step} of {len(self.plan)}.")

    def _compile(self) -> float:
        """Measures the machine and makes the programs; returns when the programs were begun."""
        from areca.train import efficiency, step

        c = self.config
        topology, devices, cores = self._hardware()
        self.meter = start_meter(topology["backend"], devices)
        self.power = expected_power(topology, devices, cores)
        self.machine = efficiency.Machine.of(c)
        started = time.perf_counter()
        layout = layout_of(c)
        mesh = layout.mesh() if layout.devices > 1 else None
        self.abstract = step.abstract_state(c.model, c.optimizer, layout, mesh)
        self.programs = {b: self._program(b, layout, mesh) for b in sorted({p.batch for p in self.plan})}
        self.init_state = lambda: first_state(c, self.identity.get("start"), self.abstract, layout, mesh)
        self.evaluate = self._evaluator(layout, mesh)
        return started

    def _hardware(self) -> tuple[dict[str, Any], int, int]:
        """The topology, and the devices and cores of it that this run computes on."""
        topology = self.identity["topology"]
        return topology, self.config.devices, min(topology["threads"] or 0, runtime.available_cores())

    def _program(self, batch: int, layout: "Layout", mesh: Any) -> Any:
        """The step for one batch size, compiled."""
        from areca.train import step

        c = self.config
        return step.compile_step(
            c.model, c.optimizer, self.abstract, batch, c.data.context, layout, mesh, c.noise_parts, c.batch.accumulate
        )

    def _evaluated(self) -> Any:
        """The shapes of parameters as they are evaluated, and where they lie then."""
        return self.abstract.params

    def _evaluator(self, layout: "Layout", mesh: Any) -> "Evaluator":
        """What gives the held-out loss of `_parameters`, compiled."""
        from areca.train.evaluate import Evaluator

        return Evaluator(self.config, self.store, self._evaluated(), self.batches.order.mixture, layout, mesh)

    def _parameters(self) -> Any:
        """The parameters, to evaluate."""
        return self._local().params

    def _place(self, state: Any) -> Any:
        """A state that was made or restored, where the steps take it."""
        return state

    def _local(self) -> Any:
        """The state as a TrainState, to save and to evaluate."""
        return self.state

    def _load(self) -> None:
        """Makes everything as it was at the latest checkpoint, or at the start if there is none."""
        import jax

        from areca.train.noise import NoiseScale

        c = self.config
        self.state = None  # going back, the old state makes room for the new one
        entry = self.checkpoints.latest()
        if entry is None:
            self.state, self.step = self._place(self.init_state()), 0
        else:
            state, host = self.checkpoints.restore(entry, self.abstract)
            self.state = self._place(state)
            self.step = int(host["step"])
        jax.block_until_ready(self.state)
        self.record.truncate_metrics(self.step)
        self.plan = anneal.plan(c, rewinds.skipped(self.rewinds))
        self.batches.anneal_after(anneal.before(self.plan))
        rows = read_metrics(self.run_dir)
        self.detector = guard.Detector(c.guard, rows)
        self.noise = NoiseScale(rows)

    def loop(self, stop: Stop, listener: Listener | None, say: Say) -> None:
        """Takes the remaining steps, going back from spikes."""
        while True:
            try:
                return self._advance(stop, listener, say)
            except Spiked as spiked:
                self._go_back(spiked.spike, say)
            except IslandError as error:
                self._go_on_without(error, say)

    def _go_on_without(self, error: IslandError, say: Say) -> None:
        """What to do when an island is lost; a run on one island can't go on."""
        raise error

    def _before_step(self, say: Say) -> None:
        """What else happens between two steps."""

    def _advance(self, stop: Stop, listener: Listener | None, say: Say) -> None:
        """Takes the remaining steps; Spiked is raised where the metrics of one are read and are a spike."""
        import numpy as np

        if self.due is not None:  # an island was lost before what follows a step was done
            due, self.due = self.due, None
            if due.step <= self.step:
                self._after(due, stop, listener)
        todo = self.plan[self.step :]
        if stop.signal and todo:
            self._stop(stop.signal)
        with contextlib.closing(self.batches.iterate((p.first_example, p.batch) for p in todo)) as data:
            self._restart_clock()
            if self.last_save is None:  # going back from a spike does not put the next save off
                self.last_save = self.last_read
            for p, tokens in zip(todo, data, strict=True):
                self._before_step(say)
                if self.profiling is not None and self.profiling.turns(p.step):
                    self._drain(listener)  # what is enqueued is over before the first step, and the last one is
                    self.profiling.turn(p.step)
                rate = self._rate(p)
                self.state, metrics = self.programs[p.batch](self.state, tokens, np.float32(rate))
                self.pending.append((p, rate, metrics))
                self.step, self.due = p.step, p
                # What is finished is read at once, and the first step after a pause before any other runs: its time is
                # then its own, and the lines after it have theirs.
                while self.pending and (
                    len(self.pending) > RUN_AHEAD or not self.steady or self.pending[0][2].is_ready()
                ):
                    self._read_one(listener)
                self._after(p, stop, listener)
                self.due = None

    def _after(self, p: schedules.StepPlan, stop: Stop, listener: Listener | None) -> None:
        """What is due after a step: evaluation, saves, an end."""
        before = p.tokens - p.batch * self.config.data.context
        every = self.config.evaluation.every_tokens
        if every and p.tokens // every > before // every and p.step < len(self.plan):
            self._drain(listener)
            self._evaluate(p.step)
        if p.step == len(self.plan):
            self._drain(listener)
            self.checkpoints.reach = 0  # nothing will go back any more
            self._save("end")
        elif self._save_is_due(p.step):
            self._drain(listener)
            self._save("interval")
        if stop.signal and p.step < len(self.plan):
            self._drain(listener)
            self._stop(stop.signal)
        self.checkpoints.check()

    def _rate(self, p: schedules.StepPlan) -> Any:
        """The rate of the middle of the step: a warm-up's first step then moves, its last is at the peak."""
        c, tokens = self.config, p.batch * self.config.data.context
        middle = p.tokens - tokens + tokens // 2
        return c.optimizer.learning_rate * schedules.learning_rate_fraction(c.schedule, middle, c.tokens)

    def _go_back(self, spike: guard.Spike, say: Say) -> None:
        """Abandons the steps since some before the spike; a kill at any instant leads to the same future.

        Until the list of rewinds is written, a resumed run meets the spike again. From then on it finds the list and
        does what is left: `settle` drops the abandoned checkpoints, `_load` cuts the metrics.
        """
        self.checkpoints.wait()  # one of the abandoned steps may be about to be recorded
        self.pending.clear()
        self.due = None
        self.state = None  # its memory is needed for the one that is loaded
        c, past = self.config, self.rewinds
        self.record.append_event(
            "spike", **asdict(spike), tokens=self.plan[spike.step - 1].tokens, number=len(past) + 1
        )
        if len(past) >= c.guard.max_rewinds:
            raise guard.exhausted(c, spike, [r.spike_step for r in past], self.checkpoints.entries())
        new = rewinds.decide(c.guard, spike, self.plan)
        rewinds.write(self.run_dir, (*past, new))
        rows = read_metrics(self.run_dir)
        self.rewinds = rewinds.settle(self.run_dir, self.checkpoints, forget=False)
        self._load()
        self._tell(spike.found_at, sum(row["seconds"] for row in rows[self.step :]))
        say(
            f"{self.run_dir}: {guard.describe(spike)} at step {spike.step}; going back to step {new.to_step} and past"
            f" {c.guard.skip_batches} batches (rewind {len(self.rewinds)} of at most {c.guard.max_rewinds})."
        )

    def _tell(self, found_at: int, lost: float) -> None:
        """Writes that the last rewind is done, and the seconds of the steps that it threw away."""
        self.record.append_event("rewind", step=found_at, number=len(self.rewinds), **asdict(self.rewinds[-1]),
                                 checkpoint=self.step, seconds=lost)  # fmt: skip

    def finish(self, labels: dict[str, Any]) -> dict[str, Any]:
        """Evaluates, writes result.json and returns it."""
        started = time.perf_counter()
        self.checkpoints.wait()
        if self.saves.last is not None:
            self.saves.last += time.perf_counter() - started
        held_out = self._evaluate(self.step)
        result = result_of(
            self.config,
            self.identity,
            held_out,
            read_evaluations(self.run_dir),
            rows=read_metrics(self.run_dir),
            machine=self.machine,
            past=self.rewinds,
            sessions=[*self.sessions, {"power": self.power, "reading": self._used(), "ended": True}],
            measured={
                "seconds": self.seconds,
                "compile_seconds": self.compile_seconds,
                **anneal.seen(self.config, self.batches, self.plan[: self.step]),
                "saves": self.saves.result(self.seconds),
                "parameters_sha256": parameters_sha256(self._local().params),
                "evaluation": held_out["footprint"],
            },
            labels=labels,
        )
        write_json(self.run_dir / "result.json", result)
        self.record.append_event("finish", **{
            "step": self.step, **{k: result[k] for k in ("loss", "rewinds", "skipped_tokens")}})  # fmt: skip
        return result

    def _read_one(self, listener: Listener | None) -> None:
        """Waits for the oldest step in flight, checks it and logs it."""
        import numpy as np

        from areca.train.lines import Taken

        p, rate, metrics = self.pending[0]
        metrics = np.asarray(metrics)
        self.pending.popleft()
        now = time.perf_counter()
        saving = self._writing(self.last_read)
        seconds, self.last_read = now - self.last_read, now
        self._log(Taken(p, rate, metrics, seconds, saving, self.steady), listener)

    def _log(self, taken: "Taken", listener: Listener | None) -> None:
        """Writes a step's line, judges it and tells the listener."""
        from areca.train.lines import line_of

        line = line_of(self.config, self.machine, self.noise, taken, self.meter.watts if self.meter else None)
        self.seconds += taken.seconds
        self.steady = True
        self.saves.step(line)
        self.record.append_metrics(line)
        for follower in (self.companions, self.copying):
            if follower is not None:
                follower.look()
        self._judge(line)
        self.pace.step(line)
        if listener:
            listener(self.pace.progress(self.run_dir.name, self.config, self.machine, self.plan, line))

    def _used(self) -> dict[str, Any] | None:
        """What the meter has read in this session, for events.jsonl."""
        return self.meter.reading() if self.meter else None

    def _restart_clock(self) -> None:
        """The time up to now is no step's, and the next step is no steady one."""
        self.last_read, self.steady = time.perf_counter(), False

    def _judge(self, row: dict[str, Any]) -> None:
        """Raises what a step's metrics call for: Spiked, or TrainingError for a broken step without the guard."""
        if self.config.guard.enabled:
            if (spike := self.detector.observe(row)) is not None:
                raise Spiked(spike)
        elif guard.not_finite(row):
            self.record.append_event("not_finite", energy=self._used(), **{k: row[k] for k in ("step", *guard.FINITE)})
            raise guard.diverged(self.config, row, self.checkpoints.latest())

    def _drain(self, listener: Listener | None) -> None:
        while self.pending:
            self._read_one(listener)

    def _save_is_due(self, step: int) -> bool:
        c = self.config.checkpoint
        if c.keep_every_steps and step % c.keep_every_steps == 0:
            return True
        if c.every_steps:
            return step % c.every_steps == 0
        now = time.perf_counter()
        if self._writing(now) is not None:  # it would be waited for, and what it costs isn't known yet
            return False
        return now - (self.last_save or now) >= self._interval()

    def _writing(self, since: float) -> int | None:
        """The step whose files were being written at that time or later, if any."""
        return self.checkpoints.writing(since)

    def _interval(self) -> float:
        return self.saves.interval(self.state_bytes)

    def _save(self, why: Literal["interval", "end", "stop"]) -> None:
        """Saves the state; every step up to it has been read and is no spike, and its metrics are on disk."""
        if (latest := self.checkpoints.latest()) is not None and latest.step == self.step:
            return
        started = time.perf_counter()
        self.record.sync()
        host = {"step": self.step, "tokens": self.plan[self.step - 1].tokens, "rewinds": rewinds.to_json(self.rewinds)}
        self.checkpoints.save(self.step, self._local(), host)
        blocked = time.perf_counter() - started
        self.record.append_event("save", step=self.step, why=why, blocked_seconds=blocked, energy=self._used())
        if why == "interval":
            self.saves.saved(blocked)
        elif why == "end":
            self.saves.last = blocked
        self._restart_clock()
        self.last_save = self.last_read

    def _evaluate(self, step: int) -> dict[str, Any]:
        with Watch(*self._hardware()) as watch:
            held_out = self.evaluate(self._parameters())
        self.record.append_event("evaluate", step=step, tokens=self.plan[step - 1].tokens, energy=self._used(), **{
            k: v for k, v in held_out.items() if k != "tokens"})  # fmt: skip
        held_out["footprint"] = per_1000_tokens(watch.footprint(here()), held_out["tokens"])
        if not math.isfinite(held_out["loss"]):
            raise Diverged(f"the held-out loss at step {step} is {held_out['loss']}: training has diverged.")
        self._restart_clock()
        return held_out

    def _stop(self, number: int) -> None:
        self.checkpoints.wait()  # the save in progress may be of this very step
        if self.step:
            self._save("stop")
            self.checkpoints.wait()
        self.record.append_event("interrupt", step=self.step, signal=signal.Signals(number).name)
        raise Interrupted(
            f"stopped by {signal.Signals(number).name} at step {self.step} of {len(self.plan)}"
            f"{', which is saved' if self.step else ', before the first'}; go on with --resume."
        )


@contextlib.contextmanager
def enough_memory(config: RunConfig, runs: int = 1) -> Iterator[None]:
    """Turns XLA's refusal to allocate into a sentence."""
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "Out of memory" not in str(error):
            raise
        many = f"{runs} runs in one program, each of " if runs > 1 else ""
        raise TrainingError(
            f"there is not enough memory to train {many}{count_params(config.model).total:,} parameters with a batch "
            f"of {max(b for _, b in config.batch.ramp)} x {config.data.context} tokens; make one of them smaller."
        ) from None
