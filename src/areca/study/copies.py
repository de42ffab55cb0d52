"""The copy of a ladder behind a URL: its runs, each a copy as `areca train --copy-to` makes it, and its ladder.json.

    URL/ladder.json      what the ladder is; written first
    URL/runs/NAME/       the copy of a run (`areca.train.away.copies`)

The runs are copied by one process for all (`areca.study.copier`), whichever way they share the machine, as it looks at
their files. Those that this machine has lost are fetched back before the ladder goes on.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from areca.data.store import TokenStore
from areca.errors import CheckpointError, ConfigError, LinkLost, RemoteError
from areca.remote.place import MARKER, Place
from areca.study.ladderjson import LADDER, describe, refuse_other
from areca.study.pool import Heard, Job
from areca.train.away.copies import MANIFEST, bring_back, settle
from areca.train.away.copying import Copying
from areca.train.record import read_run_json

if TYPE_CHECKING:
    from areca.study.ladder import Ladder

AT_ONCE = 8  # runs of which it is asked what is there


def copied_runs(url: str, ladder: "Ladder") -> set[str]:
    """Names of the ladder's runs that `url` has copies of; ConfigError if it holds another ladder, or anything else."""
    place = Place(url, to_write=True)
    names = place.names()
    if LADDER not in names:
        if others := names.keys() - {MARKER}:
            raise ConfigError(f"{url} is not empty and holds no ladder ({min(others)}); choose another --copy-to.")
        place.probe()  # a bucket that is not there, or not to be written, before anything is left here
        return set()
    try:
        there = json.loads(place.read(LADDER))
    except ValueError:
        raise RemoteError(
            f"{place.of(LADDER)} is damaged (not JSON); restore it from a copy, or choose another --copy-to."
        ) from None
    refuse_other(ladder, there, url, "--copy-to")
    return {j.name for j in ladder.jobs if f"runs/{j.name}/{MANIFEST}" in names}


def fetch_lost(url: str, ladder: "Ladder", copied: set[str], say: Callable[[str], None]) -> None:
    """Fetches the copied runs that are not here any more; writes ladder.json there before the first copy.

    CheckpointError for a run whose copy is another's, or is further than the run that is here.
    """
    place = Place(url)
    if place.info(LADDER) is None:
        place.write(LADDER, json.dumps(describe(ladder), indent=1).encode())
    jobs = [j for j in ladder.jobs if j.name in copied]

    def look(job: Job) -> Path | None:
        with _way_out(url, job):
            return settle(_of(url, job.name), job.run_dir, "auto", None)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        lost = [(job, begun) for job, begun in zip(jobs, pool.map(look, jobs), strict=True) if begun is not None]
    if not lost:
        return
    store = TokenStore.open(ladder.jobs[0].config.data.store)
    for job, begun in lost:  # all before anything is fetched
        if read_run_json(begun)["store"]["fingerprint"] != store.fingerprint:
            raise CheckpointError(
                f"{_of(url, job.name)} was trained on another store than {store.path}; give the store it had, or "
                "choose another --copy-to."
            )
    for job, _ in lost:
        with _way_out(url, job):
            bring_back(_of(url, job.name), job.run_dir, None, say)


@contextlib.contextmanager
def _way_out(url: str, job: Job) -> Iterator[None]:
    """Says of a run's copy that can't be used how the ladder goes on without it."""
    try:
        yield
    except LinkLost:
        raise
    except (CheckpointError, RemoteError) as error:
        raise CheckpointError(
            f"the copy of run {job.name} can't be used: {error} Or remove all of {_of(url, job.name)}: the same "
            "command then trains that run again."
        ) from None


@contextlib.contextmanager
def copied_to(url: str, ladder: "Ladder", say: Callable[[str], None]) -> Iterator[Callable[[Heard], Heard]]:
    """Copies the runs while the block lasts, and their last states at the end; nothing without a URL.

    Yields what to wrap a listener in, so that how the copies go is heard of whenever runs are.
    """
    if not url:
        yield lambda heard: heard
        return
    copying = Copying(url, ladder.directory, lambda *_, **__: None, say, module="areca.study.copier",
                      goes_on="The runs go on", sends="the same command")  # fmt: skip

    def hearing(heard: Heard) -> Heard:
        def wrapped(name: str, what: dict) -> None:
            copying.look()
            heard(name, what)

        return wrapped

    try:
        yield hearing
    finally:
        copying.end()


def _of(url: str, name: str) -> str:
    return Place(url).of(f"runs/{name}")
