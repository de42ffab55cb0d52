"""How a family of runs shares the machine: one after another, processes side by side, or several runs as one program.

On a CPU processes of one thread, each on a core of its own, give the bits of a run alone and nearly the speed: one
program is faster for the smallest models only (docs/log.md). On an accelerator one process has the device, and runs
that differ in seed and learning rate only fill it as one program (`areca.train.together`), each as alone to rounding.
Which runs go together follows from the family, not from what is finished already, so a family that was interrupted goes
on with the same programs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from areca.config import RunConfig, to_dict
from areca.errors import ConfigError
from areca.files import sha256_json
from areca.study.pool import Job

Together = Literal["auto", "vmap", "processes", "one"]
MOST = 16  # runs of one program; a larger group is cut into equal parts


@dataclass(frozen=True)
class Arrangement:
    """What goes at a time. `says` is the sentence for the user."""

    programs: list[list[Job]]
    workers: int  # 0: one for each core
    says: str


def arrange(jobs: Sequence[Job], together: Together, workers: int, backend: str) -> Arrangement:
    """The programs for `jobs` on a machine whose jax computes on `backend`. ConfigError for what can't go together."""
    if workers < 0:
        raise ConfigError(f"workers is {workers}; give how many runs go at a time, or 0 for one for each core.")
    if together == "one" and workers > 1:
        raise ConfigError(f"workers is {workers}, but together is 'one', which is one run after another; drop one.")
    alone, accelerator = [[job] for job in jobs], backend != "cpu"
    if accelerator and together == "processes" and not workers:
        raise ConfigError(
            f"together is 'processes', but on a {backend} each process takes most of the memory; use 'vmap' or 'one',"
            " or say with workers how many may share it."
        )
    grouped = groups(jobs) if together == "vmap" or (together == "auto" and accelerator) else alone
    if accelerator:
        workers = workers or 1
    if len(grouped) < len(jobs):
        why = f" (auto: this machine computes on a {backend})" if together == "auto" else ""
        most = max(map(len, grouped))
        says = (
            f"{len(jobs)} runs in {len(grouped)} programs of up to {most}{why}: a run that shares its program agrees "
            "with the run alone to rounding, not to the bit."
        )
    elif together == "one" or workers == 1:
        says = f"{len(jobs)} runs, one after another."
    else:
        many = f"{workers} at a time" if workers else "one on each core"
        why = " (auto: on a CPU one program gains little and gives other bits)" if together == "auto" else ""
        why = " (no two are alike but for seed and learning rate)" if together == "vmap" else why
        says = f"{len(jobs)} runs as processes, {many}{why}."
    return Arrangement(grouped, 1 if together == "one" else workers, says)


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs that can be one program, in order: all alike but for seeds and learning rate."""
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        alike.setdefault(_key(job.config), []).append(job)
    cut: list[list[Job]] = []
    for members in alike.values():
        parts = -(-len(members) // MOST)
        bounds = [round(i * len(members) / parts) for i in range(parts + 1)]
        cut += [members[a:b] for a, b in pairwise(bounds)]
    return cut


def _key(config: RunConfig) -> str:
    """Equal for runs that differ in `areca.train.together.MAY_DIFFER` only."""
    same = replace(
        config, seed=0, data=replace(config.data, seed=0), optimizer=replace(config.optimizer, learning_rate=1.0)
    )
    return sha256_json(to_dict(same))
