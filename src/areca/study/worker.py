"""One worker: takes programs from standard input, one JSON line each, and reports on standard output.

In:   {"runs": [{"config": RunConfig as a dictionary, "run_dir": path, "labels": {...}}, ...]}, several as one program
Out:  {"run": index, "progress": {...}} and {"say": sentence}, then {"results": [{...} or {"diverged": sentence}, ...]},
      {"error": sentence} or {"stopped": sentence}

`python -m areca.study.worker THREADS CORE` pins itself to CORE (-1: not pinned). It lives for many runs, so that
importing and starting jax is paid once. When standard input ends while a run is in progress (the parent is gone), the
run saves and the worker ends.
"""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

LOCK_PATIENCE_SECONDS = 180.0  # a worker whose parent was killed ends after its compilation, or saves, and lets go


def main(threads: int, core: int) -> None:
    """Serves until standard input ends."""
    if core >= 0 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not end up between our lines
    jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
    busy = threading.Event()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(json.loads(line))
        jobs.put(None)
        if busy.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def send(**message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ValueError):
            out.write(json.dumps(message) + "\n")

    threading.Thread(target=read, daemon=True).start()
    while (job := jobs.get()) is not None:
        busy.set()
        _serve(job, threads, send)
        busy.clear()


def _serve(job: dict[str, Any], threads: int, send: Any) -> None:
    from areca import runtime
    from areca.config import from_dict
    from areca.errors import ArecaError, Diverged, Interrupted, of_the_system
    from areca.train.progress import Progress
    from areca.train.together import Member

    runs = [Member(from_dict(r["config"]), Path(r["run_dir"]), r["labels"]) for r in job["runs"]]
    indices = {r.run_dir.name: i for i, r in enumerate(runs)}
    last = [0.0] * len(runs)

    def listen(p: Progress) -> None:
        now, i = time.monotonic(), indices[p.run]
        if now - last[i] > 0.25:
            last[i] = now
            send(run=i, progress=dataclasses.asdict(p))

    def say(sentence: str) -> None:
        # That a run starts, or is finished already, is seen by whoever counts runs.
        if not sentence.endswith(("starting one.", "is finished already.")):
            send(say=sentence)

    try:
        runtime.prepare(threads)
        outcomes = _patiently(lambda: _make(runs, listen, say))
        send(results=[{"diverged": str(o)} if isinstance(o, Diverged) else o for o in outcomes])
    except Interrupted as error:
        send(stopped=str(error))
    except ArecaError as error:
        send(error=str(error))
    except OSError as error:
        where = str(runs[0].run_dir)
        sentence = of_the_system(error, "give the same command: it goes on", where)
        send(error=sentence or f"{error.strerror or error} ({error.filename or where})")
    except Exception:
        send(error=f"a fault of Areca's own in {runs[0].run_dir}:\n{traceback.format_exc()}")


def _make(runs: list[Any], listen: Any, say: Any) -> list[Any]:
    """The result of each run, or its Diverged."""
    from areca.errors import Diverged
    from areca.train.identity import diverged_before
    from areca.train.loop import train
    from areca.train.together import train_together

    if len(runs) > 1:
        return train_together(runs, listener=listen, say=say)
    run = runs[0]
    if (before := diverged_before(run.run_dir, run.config)) is not None:
        return [before]
    try:
        return [train(run.config, run.run_dir, resume="auto", labels=run.labels, listener=listen, say=say)]
    except Diverged as error:
        return [error]


def _patiently(work: Any) -> Any:
    from areca.errors import RunBusyError

    end = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            return work()
        except RunBusyError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
