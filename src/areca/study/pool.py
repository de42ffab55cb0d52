"""Several programs at a time: worker processes of one thread each, pinned to cores of their own.

A program is one run, or several that train as one (`areca.train.together`).

On a CPU small models leave most of a machine idle: two processes of one thread do about twice the steps of one
process of two (docs/log.md). A run has the same thread count whether it runs alone or beside others, so it has the
same bits.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.config import RunConfig, to_dict
from areca.errors import ConfigError, TrainingError
from areca.runtime import available_cores


@dataclass(frozen=True)
class Job:
    """One run to make. `cost` is in FLOPs: the dearest are started first, so that workers end together."""

    name: str
    config: RunConfig
    run_dir: Path
    labels: dict[str, Any]
    cost: float


# name, and a Progress as a dictionary or a finished result
Heard = Callable[[str, dict[str, Any]], None]
Program = Sequence[Job]


def run_jobs(
    programs: Sequence[Program],
    *,
    threads: int = 1,
    workers: int = 0,
    on_progress: Heard,
    on_result: Heard,
    on_diverged: Callable[[str, str], None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Makes the runs of all programs and returns their results by name; a finished run is taken as it is.

    `workers` 0 means one for each core there is (divided by `threads`). `on_diverged` is called with the name and the
    sentence of a run that diverged, which then has no result; without it, that is a failure. Raises TrainingError with
    the sentence of the first run that fails, after the others in progress have saved; on KeyboardInterrupt they save
    too.
    """
    if workers < 0:
        raise ConfigError(f"workers is {workers}; give how many runs go at a time, or 0 for one for each core.")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    count = min(len(programs), workers or max(1, available_cores() // threads))
    waiting = sorted(programs, key=lambda program: -sum(j.cost for j in program))
    ended = 0
    results: dict[str, dict[str, Any]] = {}
    messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
    crew = [_Worker(threads, cores[i] if threads == 1 and i < len(cores) else -1, messages) for i in range(count)]
    try:
        for worker in crew:
            worker.start(waiting.pop(0))
        while ended < len(programs):
            worker, message = messages.get()
            names = [job.name for job in worker.program]
            name = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else ""
            if message is None:
                raise TrainingError(
                    f"the worker of run {name} ended unexpectedly; the same command goes on:\n{worker.complaint()}"
                )
            if "progress" in message:
                on_progress(names[message["run"]], message["progress"])
            elif "say" in message:
                say(message["say"])
            elif "results" in message:
                for one, result in zip(names, message["results"], strict=True):
                    if "diverged" not in result:
                        results[one] = result
                        on_result(one, result)
                    elif on_diverged is None:
                        raise TrainingError(f"run {one}: {result['diverged']}")
                    else:
                        on_diverged(one, result["diverged"])
                ended += 1
                if waiting:
                    worker.start(waiting.pop(0))
                else:
                    worker.dismiss()
            elif name:
                raise TrainingError(f"run {name}: {message.get('error') or message.get('stopped')}")
    finally:
        for worker in crew:
            worker.stop()
    return results


class _Worker:
    """A worker process and the thread that listens to it."""

    def __init__(self, threads: int, core: int, messages: queue.Queue) -> None:
        self.program: Program = ()
        self.lines: list[str] = []
        self.dismissed = False
        self.process = subprocess.Popen(
            [sys.executable, "-m", "areca.study.worker", str(threads), str(core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then lets its workers save
        )
        self.listeners = [
            threading.Thread(target=self._listen, args=(messages,), daemon=True),
            threading.Thread(target=self._complain, daemon=True),
        ]
        for thread in self.listeners:
            thread.start()

    def start(self, program: Program) -> None:
        self.program = program
        runs = [{"config": to_dict(j.config), "run_dir": str(j.run_dir), "labels": j.labels} for j in program]
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps({"runs": runs}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the listener reports that the worker ended

    def dismiss(self) -> None:
        """No more jobs: the worker ends by itself."""
        self.dismissed = True
        self.program = ()
        assert self.process.stdin
        self.process.stdin.close()

    def stop(self) -> None:
        """Lets a run in progress save, and waits for the process to end."""
        if not self.dismissed and self.process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()  # a busy worker takes this as the request to save and end
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self.listeners:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def complaint(self) -> str:
        """The last of what the process wrote to standard error."""
        self.listeners[1].join(timeout=1)
        return "".join(self.lines[-20:]) or f"exit code {self.process.poll()}"

    def _listen(self, messages: queue.Queue) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            messages.put((self, json.loads(line)))
        if not self.dismissed:
            messages.put((self, None))

    def _complain(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line)
            del self.lines[:-200]
