"""Which spikes were gone back from and which examples are skipped since: a list of integers, durable in rewinds.json.

A rewind to step q because of a spike makes one promise: from q on the run reads other examples. The state it goes on
from is that of step q itself, reached from whatever checkpoint (or the seed) lies at or before q by the same steps as
before. So the trajectory depends neither on when checkpoints were made nor on which of them are left.

The list is written, atomically, before anything else is changed; whoever opens the run next carries out what it says.
Each checkpoint has the list of its time in its host state, which tells the checkpoints of an abandoned future from
those of the present one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from areca.config import GuardConfig
from areca.data.order import ANNEAL
from areca.errors import CheckpointError, DataError
from areca.files import read_json, write_json
from areca.train.checkpoint import Checkpoints
from areca.train.guard import Spike
from areca.train.record import REWINDS
from areca.train.schedules import StepPlan


@dataclass(frozen=True)
class Rewind:
    """One time of going back: from a spike at `spike_step` to step `to_step`, skipping examples [from, to) there."""

    spike_step: int
    to_step: int
    skipped_from: int
    skipped_to: int


Rewinds = tuple[Rewind, ...]


def decide(config: GuardConfig, spike: Spike, plan: Sequence[StepPlan]) -> Rewind:
    """Where to go back to, and the examples of the next `skip_batches` steps of the plan from there.

    All of one mixture: from a spike in the anneal the run goes back to no step before it, since only the anneal's
    examples are to be others, and what is skipped before the anneal would have been read there.
    """
    to_step = max(0, spike.step - config.rewind_steps)
    before = sum(p.first_example < ANNEAL for p in plan)
    if spike.step > before:
        to_step = max(to_step, before)
    phase = plan[:before] if to_step < before else plan
    return Rewind(
        spike.step,
        to_step,
        _first_example(phase, to_step + 1),
        _first_example(phase, to_step + 1 + config.skip_batches),
    )


def _first_example(plan: Sequence[StepPlan], step: int) -> int:
    """The first example of a step, also of one past the end, where batches stay as large as the last."""
    if step <= len(plan):
        return plan[step - 1].first_example
    last = plan[-1]
    return last.first_example + (step - last.step) * last.batch


def skipped(rewinds: Rewinds) -> list[tuple[int, int]]:
    """The ranges [from, to) of examples that are left out, in order and apart from each other."""
    ranges: list[tuple[int, int]] = []
    for start, stop in sorted((r.skipped_from, r.skipped_to) for r in rewinds):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(stop, ranges[-1][1]))
        else:
            ranges.append((start, stop))
    return ranges


def skipped_tokens(rewinds: Rewinds, context: int) -> int:
    """How many tokens those are."""
    return context * sum(stop - start for start, stop in skipped(rewinds))


def to_json(rewinds: Rewinds) -> list[dict[str, int]]:
    """The list as JSON values, for rewinds.json and for the host state of checkpoints."""
    return [asdict(r) for r in rewinds]


def write(run_dir: Path, rewinds: Rewinds) -> None:
    """Makes `rewinds` the run's list, atomically and durably."""
    write_json(run_dir / REWINDS, {"rewinds": to_json(rewinds)})


def settle(run_dir: Path, checkpoints: Checkpoints, *, forget: bool) -> Rewinds:
    """The list that holds for the run's latest checkpoint, with everything carried out that a kill left undone.

    Checkpoints of a future that the last rewind abandoned are dropped. With `forget` the run goes back to a checkpoint
    by the user's will: the list becomes the one that it was saved with.

    Raises CheckpointError if rewinds.json is damaged or is not the list that the latest checkpoint was saved with or a
    longer one.
    """
    path = run_dir / REWINDS
    if forget:
        rewinds = _of(checkpoints)
        if rewinds or path.exists():
            write(run_dir, rewinds)
        return rewinds
    try:
        rewinds = _parse(read_json(path)["rewinds"]) if path.exists() else ()
    except (DataError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} can't be read as the list of rewinds ({str(error).rstrip('.')}); restore it from a"
            f" copy{_or(checkpoints)}."
        ) from None
    if rewinds:
        to_step = rewinds[-1].to_step
        if any(e.step > to_step and len(e.host.get("rewinds", ())) < len(rewinds) for e in checkpoints.entries()):
            checkpoints.forget(to_step)
    if rewinds[: len(saved := _of(checkpoints))] != saved:
        raise CheckpointError(
            f"{path} does not have the {len(saved)} rewinds that the latest checkpoint was saved with; restore it"
            f" from a copy{_or(checkpoints)}."
        )
    return rewinds


def untold(rewinds: Rewinds, events: Sequence[dict[str, Any]]) -> int | None:
    """The step that found the last spike, if a kill came between the list and the event that tells of the rewind."""
    told = [e for e in events if e["event"] in ("spike", "rewind")]
    if not told or told[-1]["event"] != "spike" or told[-1]["number"] != len(rewinds):
        return None
    return told[-1]["found_at"]


def _of(checkpoints: Checkpoints) -> Rewinds:
    latest = checkpoints.latest()
    return _parse(latest.host.get("rewinds", ())) if latest else ()


def _or(checkpoints: Checkpoints) -> str:
    latest = checkpoints.latest()
    if latest is None:
        return ""
    return f", or go on with --resume --from-step {latest.step}, which takes the checkpoint's own list"


def _parse(rows: Any) -> Rewinds:
    return tuple(Rewind(**{k: int(v) for k, v in row.items()}) for row in rows)
