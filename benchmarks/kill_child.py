"""`areca train` that kills itself (SIGKILL): at a random instant, or within a named phase of its life.

    python benchmarks/kill_child.py LOG life SECONDS     -- train run.toml --out runs/a --auto-resume
    python benchmarks/kill_child.py LOG training SECONDS -- train ...
    python benchmarks/kill_child.py LOG PHASE NTH        -- train ...

The seconds count from the start of the process, of its training loop, or (the phase "rewind") of going back from a
spike; the phases are those of PHASES. The program that runs is the user's; only the instants are marked, from outside,
by wrapping functions, so nothing in `src` knows of this. Before the kill one JSON line goes to LOG: what the training
thread was in, and what the saving thread was in.
"""

import functools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = ("compile", "step", "save", "commit", "append", "rewind")
STARTED = time.perf_counter()


class Killer:
    """Knows which phase each thread is in and when to die."""

    def __init__(self, log: Path, phase: str, when: float) -> None:
        self.log, self.phase, self.when = log, phase, when
        self.main, self.saving = "start", "idle"
        self.counts: dict[str, int] = {}
        self.random = random.Random(f"{phase} {when}")
        self.once = threading.Lock()
        if phase == "life":
            self.later(when)

    def due(self, phase: str) -> bool:
        """Counts one more time of a phase; True at the one to die in."""
        self.counts[phase] = self.counts.get(phase, 0) + 1
        return phase == self.phase and self.counts[phase] == self.when

    def later(self, seconds: float) -> None:
        """Dies that much later, wherever the threads are by then."""
        timer = threading.Timer(seconds, self.die)
        timer.daemon = True
        timer.start()

    def die(self) -> None:
        """Logs the phase and sends SIGKILL to this process."""
        self.once.acquire()
        line = {"asked": self.phase, "main": self.main, "saving": self.saving, "seconds": time.perf_counter() - STARTED}
        with self.log.open("a") as f:
            f.write(json.dumps(line) + "\n")
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def within(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with the main thread marked as being in `name` while it runs."""

        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            before, self.main = self.main, name
            try:
                return function(*args, **kwargs)
            finally:
                self.main = before

        return marked


def install(killer: Killer) -> None:
    """Marks the phases and arms the kill. Imports what `areca train` would import anyway."""
    from areca.train import checkpoint, evaluate, record, step
    from areca.train.run import Run

    train = killer.within("step", Run.loop)

    def train_until(*args: Any) -> None:
        if killer.phase == "training":
            killer.later(killer.when)
        train(*args)

    Run.loop = train_until
    Run._go_back = _rewind(killer, Run._go_back)
    Run.finish = killer.within("finish", Run.finish)
    evaluate.Evaluator.__call__ = killer.within("evaluate", evaluate.Evaluator.__call__)
    checkpoint.Checkpoints.restore = killer.within("restore", checkpoint.Checkpoints.restore)
    _mark_compile_and_step(killer, step)
    _mark_append(killer, record)
    _mark_save_and_commit(killer, checkpoint)


def _rewind(killer: Killer, go_back: Callable[..., Any]) -> Callable[..., Any]:
    """From the spike that was seen to the state gone back to: list, checkpoints dropped, one loaded, metrics cut."""

    def marked(*args: Any) -> None:
        if killer.phase == "rewind":
            killer.later(killer.when)
        killer.within("rewind", go_back)(*args)
        if killer.phase == "rewind":
            killer.main = "rewind"
            killer.die()

    return marked


def _mark_compile_and_step(killer: Killer, step: Any) -> None:
    compile_step = killer.within("compile", step.compile_step)

    def compile_and_count(*args: Any) -> Any:
        due = killer.due("compile")
        if due:
            killer.later(killer.random.uniform(0, 0.3))
        program = compile_step(*args)
        if due:
            killer.main = "compile"
            killer.die()

        def run(*inputs: Any) -> Any:
            output = program(*inputs)
            if killer.due("step"):  # enqueued, and most likely still running
                killer.die()
            return output

        return run

    step.compile_step = compile_and_count


def _mark_append(killer: Killer, record: Any) -> None:
    append = killer.within("append", record.RunRecord.append_metrics)
    write = os.write

    def half(handle: int, data: bytes) -> int:
        write(handle, data[: len(data) // 2])
        killer.die()
        return 0

    def append_metrics(self: Any, values: dict[str, Any]) -> None:
        if killer.due("append"):
            record.os.write = half
            killer.main = "append"
        append(self, values)

    record.RunRecord.append_metrics = append_metrics


def _mark_save_and_commit(killer: Killer, checkpoint: Any) -> None:
    """save: from the call to orbax' rename. commit: from there until the record lists it and old directories are gone.

    Within a commit the kill comes before the digests, before the record, in its atomic write, or before old directories
    are deleted, in turn.
    """
    save, commit, sweep = (getattr(checkpoint.Checkpoints, n) for n in ("save", "_commit", "_sweep"))
    digests, write_record = checkpoint.digests, checkpoint.write_record
    due, place = [False], [""]

    def start(self: Any, step: int, *args: Any) -> None:
        killer.saving = "save"
        if killer.due("save"):
            threading.Thread(target=_when_writing, args=(killer, self.directory), daemon=True).start()
        save(self, step, *args)

    def background(self: Any, *args: Any) -> None:
        commit(self, *args)
        killer.saving = "idle"

    def digest(directory: Path) -> dict[str, str]:
        killer.saving = "commit"
        due[0] = killer.due("commit")
        place[0] = ("sweep", "digests", "record", "rename")[int(killer.when) % 4]
        if due[0] and place[0] == "digests":
            killer.die()
        return digests(directory)

    def write(path: Path, entries: Any) -> None:
        if due[0] and place[0] == "record":
            killer.die()
        if due[0] and place[0] == "rename":
            os.replace = lambda *_: killer.die()
        write_record(path, entries)

    def clean(self: Any) -> None:
        if due[0]:
            killer.die()
        sweep(self)

    checkpoint.Checkpoints.save, checkpoint.Checkpoints._commit, checkpoint.Checkpoints._sweep = (
        start,
        background,
        clean,
    )
    checkpoint.digests, checkpoint.write_record = digest, write


def _when_writing(killer: Killer, directory: Path) -> None:
    """Dies once orbax' temporary directory is there and perhaps has some of its files."""
    files = killer.random.randrange(8)
    while killer.saving == "save":
        found = [p for p in directory.glob("*.orbax-checkpoint-tmp*/**/*") if p.is_file()]
        if len(found) >= files and any(directory.glob("*.orbax-checkpoint-tmp*")):
            break
        time.sleep(0.0005)
    killer.die()


if __name__ == "__main__":
    log, phase, when, dashes, *command = sys.argv[1:]
    if dashes != "--" or phase not in (*PHASES, "life", "training"):
        sys.exit(__doc__)
    killer = Killer(Path(log), phase, float(when))
    install(killer)

    from areca.cli.main import main

    sys.exit(main(command))
