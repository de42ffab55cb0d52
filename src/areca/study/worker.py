"""One worker: takes runs from standard input, one JSON line each, and reports on standard output.

In:   {"config": RunConfig as a dictionary, "run_dir": path, "labels": {...}}
Out:  {"progress": {...}}, then {"result": {...}}, {"error": sentence} or {"stopped": sentence}

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
    from areca.errors import ArecaError, Interrupted, of_the_system
    from areca.train.loop import Progress, train

    last = 0.0

    def listen(p: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > 0.25:
            last = now
            send(progress=dataclasses.asdict(p))

    try:
        runtime.prepare(threads)
        result = _patiently(
            lambda: train(
                from_dict(job["config"]), job["run_dir"], resume="auto", labels=job["labels"], listener=listen
            )
        )
        send(result=result)
    except Interrupted as error:
        send(stopped=str(error))
    except ArecaError as error:
        send(error=str(error))
    except OSError as error:
        sentence = of_the_system(error, "give the same command: it goes on", job["run_dir"])
        send(error=sentence or f"{error.strerror or error} ({error.filename or job['run_dir']})")
    except Exception:
        send(error=f"a fault of Areca's own in {job['run_dir']}:\n{traceback.format_exc()}")


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
