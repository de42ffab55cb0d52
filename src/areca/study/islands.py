"""The runs of a family as clients of one controller: they share its islands, and a run that fails is tried again.

Each run is a thread of this process, which only enqueues; the islands compute. An island has several runs, so that
while one is evaluated, saved or compiled the others' steps fill it. Which island has a run leaves no trace in its bits.

By default runs have equal weights, and those of an island end at different times: the evaluation at a run's end and the
compilation of the next are then beside the steps of the others. With weights by FLOPs all runs are equally far at any
time, which is good to look at and leaves nothing beside the last evaluations.
"""

import contextlib
import itertools
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from areca import runtime
from areca.errors import (
    ArecaError,
    ConfigError,
    Diverged,
    Interrupted,
    IslandError,
    ProgramError,
    TrainingError,
    of_the_system,
)
from areca.study.pool import Heard, Job

Kind = Literal["devices", "processes", "ray"]
Weights = Literal["equal", "flops"]
RETRIES = 3  # of a run that failed
AT_ONCE = 2  # runs on an island, where nothing else is said
MOST = 64  # islands or runs at a time


@dataclass(frozen=True)
class Islands:
    """Where a family runs: `count` islands of a kind, each run over `each` of them, so many runs `at_once` (0: two an
    island), which share an island evenly or by their FLOPs."""

    count: int
    on: Kind = "devices"
    each: int = 1
    at_once: int = 0
    weights: Weights = "equal"

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST:
            raise ConfigError(f"--islands is {self.count}; give 1 to {MOST}.")
        if not 1 <= self.each <= self.count:
            raise ConfigError(f"--islands-each is {self.each} and there are {self.count} islands; give 1 to that.")
        if not 0 <= self.at_once <= MOST * AT_ONCE:
            raise ConfigError(f"workers is {self.at_once}; give up to {MOST * AT_ONCE} runs at a time, or 0.")

    @property
    def runs(self) -> int:
        """At a time."""
        return self.at_once or max(1, AT_ONCE * self.count // self.each)

    def describe(self, runs: int) -> str:
        """The sentence for the user."""
        many = f"{runs} run{'s' if runs > 1 else ''}{f', each over {self.each} of' if self.each > 1 else ' over'}"
        at_once = f"{min(self.runs, runs)} at a time" if min(self.runs, runs) > 1 else "one after another"
        return f"{many} {self.count} island{'s' if self.count > 1 else ''} ({self.on}), {at_once}."


def on_islands(jobs: Sequence[Job], islands: Islands) -> list[Job]:
    """The jobs as they run there. On one island each a run's settings, and so its bits, are those it has without."""
    from areca.train.identity import with_islands

    made = []
    for job in jobs:
        c = job.config
        if islands.each > 1:
            if c.noise_parts:
                raise ConfigError(
                    f"run {job.name} measures the gradient noise scale, which is not measured over several islands; "
                    "give --islands-each 1 or leave out --islands."
                )
            c = with_islands(replace(c, islands=replace(c.islands, count=islands.each, on=islands.on)))
        if c.parallel.data * c.parallel.model > 1:
            raise ConfigError(
                f"run {job.name} has a mesh of {c.parallel.data} x {c.parallel.model} devices, and runs that share "
                "islands have one device on each; set parallel to 1 x 1 or train it with `areca train`."
            )
        made.append(replace(job, config=c))
    return made


def run_over_islands(
    jobs: Sequence[Job],
    islands: Islands,
    *,
    on_progress: Heard,
    on_result: Heard,
    on_diverged: Callable[[str, str], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
    launch: Sequence[Sequence[str]] = (),
) -> dict[str, dict[str, Any]]:
    """Makes the runs and returns their results by name; a finished run is taken as it is.

    A run that fails goes on from its last checkpoint, up to RETRIES times; its events.jsonl has a "retry" each time.
    The others never notice. Raises TrainingError with the sentences of runs that failed for good, after all others have
    ended, and Interrupted on SIGINT or SIGTERM, after all have saved. `on_diverged` as of `areca.study.pool.run_jobs`.
    """
    from areca.pathways.shared import SharedFleet
    from areca.train.islands.setting import setting_of
    from areca.train.signals import stop_requests

    if not jobs:
        return {}
    first = jobs[0].config
    settings = {(j.config.threads, j.config.islands.processes) for j in jobs}
    if len(settings) > 1:
        raise ConfigError(
            f"runs that share islands have threads and processes of {sorted(settings)}; give all the same."
        )
    runtime.prepare(first.threads, devices=islands.count if islands.on == "devices" else 1)
    setting = replace(setting_of(first), launch=launch)
    with (
        stop_requests() as stop,
        SharedFleet(islands.on, islands.count, setting, restart=first.islands.restart) as fleet,
    ):
        return _Crew(jobs, islands, fleet, stop, on_progress, on_result, on_diverged, say).work()


@contextlib.contextmanager
def _nimble() -> Iterator[None]:
    """Has Python's threads hand over every half millisecond: a step is no longer than the usual 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass
class _Crew:
    """The runs that wait, those in progress, and what was heard of them."""

    jobs: Sequence[Job]
    islands: Islands
    fleet: Any
    stop: Any
    on_progress: Heard
    on_result: Heard
    on_diverged: Callable[[str, str], None] | None
    say: Callable[[str], None]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    stopped: bool = False  # before all had ended
    heard: "queue.SimpleQueue[tuple[str, Job, Any]]" = field(default_factory=queue.SimpleQueue)

    def work(self) -> dict[str, dict[str, Any]]:
        """In the main thread: starts runs and listens to them until all have ended."""
        waiting, going = sorted(self.jobs, key=lambda j: -j.cost), 0
        while True:
            if self.stop.signal and waiting:
                waiting, self.stopped = [], True
            while waiting and going < self.islands.runs:
                job = waiting.pop(0)
                threading.Thread(target=self._train, args=(job,), name=f"areca-run-{job.name}", daemon=True).start()
                going += 1
            if not going:
                break
            try:
                what, job, value = self.heard.get(timeout=0.5)
            except queue.Empty:  # to look whether the user has stopped it
                continue
            going -= what in ("result", "diverged", "failed", "stopped")
            self._hear(what, job, value)
        if self.stopped:
            raise Interrupted("stopped; all runs are saved and the same command goes on.")
        if self.failed:
            said = "; ".join(f"run {name}: {why}" for name, why in self.failed.items())
            others = f"; the other {len(self.results)} have ended" if self.results else ""
            raise TrainingError(f"{said} The same command tries again{others}.")
        return self.results

    def _hear(self, what: str, job: Job, value: Any) -> None:
        if what == "progress":
            self.on_progress(job.name, value)
        elif what == "say":
            self.say(value)
        elif what == "result":
            self.results[job.name] = value
            self.on_result(job.name, value)
        elif what == "stopped":
            self.stopped = True
        elif what == "diverged" and self.on_diverged is not None:
            self.on_diverged(job.name, value)
        elif what in ("diverged", "failed"):
            self.failed[job.name] = value
            self.say(f"run {job.name} failed: {value}")

    # In a thread for each run.

    def _train(self, job: Job) -> None:
        tell = _Telling(self.heard, job)
        try:
            tell(*self._outcome(job, tell))
        except OSError as error:
            sentence = of_the_system(error, "give the same command: it goes on", str(job.run_dir))
            tell("failed", sentence or f"{error.strerror or error} ({error.filename or job.run_dir})")
        except BaseException:
            tell("failed", f"a fault of Areca's own in {job.run_dir}:\n{traceback.format_exc()}")

    def _outcome(self, job: Job, tell: "_Telling") -> tuple[str, Any]:
        """How the run ended, and what there is to say of it."""
        from areca.train.identity import diverged_before

        for number in itertools.count(1):
            try:
                if (before := diverged_before(job.run_dir, job.config)) is not None:
                    return "diverged", str(before)
                return "result", self._once(job, tell)
            except Diverged as error:
                return "diverged", str(error)
            except Interrupted as error:
                return "stopped", str(error)
            except (ProgramError, IslandError, TrainingError) as error:
                if number > RETRIES or self.stop.signal:
                    return "failed", str(error)
                _note(job.run_dir, number, str(error))
                tell("say", f"run {job.name}: {error} It is tried again ({number} of at most {RETRIES} times).")
            except ArecaError as error:
                return "failed", str(error)
        raise AssertionError("unreachable")

    def _once(self, job: Job, tell: "_Telling") -> dict[str, Any]:
        """The run's result, from where it is."""
        from areca.train.islands.tenant import Tenant
        from areca.train.loop import train

        mean = sum(j.cost for j in self.jobs) / len(self.jobs)
        weight = job.cost / mean if self.islands.weights == "flops" else 1.0
        at_a_time = min(self.islands.runs, len(self.jobs))
        tenant = Tenant(
            self.fleet, self.stop, job.name, job.config.islands.count, weight, at_a_time, lambda: job.cost * tell.left
        )
        tell.tenant = tenant
        with contextlib.closing(tenant.choose()):
            return train(
                job.config,
                job.run_dir,
                resume="auto",
                labels=job.labels,
                listener=tell.listen,
                say=tell.say,
                tenant=tenant,
            )


class _Telling:
    """What a run's thread tells the main one."""

    def __init__(self, heard: Any, job: Job) -> None:
        self.heard, self.job, self.last, self.left = heard, job, 0.0, 1.0
        self.tenant: Any = None

    def __call__(self, what: str, value: Any) -> None:
        self.heard.put((what, self.job, value))

    def listen(self, p: Any) -> None:
        """A step was taken."""
        self.left = 1 - p.step / p.steps
        if self.tenant.leased is not None:
            self.tenant.leased.work = self.job.cost * self.left
        if (now := time.monotonic()) - self.last > 0.25:
            self.last = now
            self("progress", asdict(p))

    def say(self, sentence: str) -> None:
        """As of `areca.study.worker`: that a run starts, or is finished already, is seen by whoever counts runs."""
        if not sentence.endswith(("starting one.", "is finished already.")):
            self("say", sentence)


def _note(run_dir: Path, number: int, why: str) -> None:
    """Records a retry, of a run that has begun."""
    from areca.train.record import RunRecord

    if (run_dir / "run.json").exists():
        with RunRecord(run_dir) as record:
            record.append_event("retry", number=number, of=RETRIES, why=why)
