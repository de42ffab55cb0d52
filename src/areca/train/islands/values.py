"""What a run over islands holds: a state on all of them, and the numbers of a step, which are compared between them."""

from typing import Any

import jax
import numpy as np

from areca.errors import IslandError, TrainingError
from areca.pathways.future import Future
from areca.train.step import TrainState


class IslandState:
    """The state of a run on all islands; as a TrainState it is one island's."""

    def __init__(self, params: Future, rest: Future) -> None:
        self.futures = params, rest

    def local(self) -> TrainState:
        """The arrays of the first island that has not been lost."""
        params, rest = (_of_living(f) for f in self.futures)
        return TrainState(rest["step"], params, rest["optimizer"])

    @property
    def params(self) -> Any:
        """The first island's parameters."""
        return _of_living(self.futures[0])


def _of_living(future: Future) -> Any:
    """A value on an island that has not been lost. Islands are the same to the bit."""
    lost: IslandError | None = None
    for island in future.islands:
        try:
            if not island.remote:
                return jax.tree.unflatten(future.tree, future.arrays(island))
            return future.on(island)
        except IslandError as error:
            lost = error
    raise lost or IslandError(f"what {future.made_by} gave is on no island.")


class Metrics:
    """The numbers of a step, as an array that will be; with them, now and then, every island's digest.

    `before` is the state that the step started from: an island that has not ended the step still has it.
    """

    def __init__(self, values: Future, digests: Future | None, before: IslandState | None = None) -> None:
        self.values, self.digests, self.before = values, digests, before

    def is_ready(self) -> bool:
        """Whether reading them would not wait."""
        if not self.values.placed or self.values.error is not None:
            return self.values.placed
        found = [self.values.peek(i) for i in self.values.islands]
        return all(f[0].is_ready() if isinstance(f, list) else f.is_ready() for f in found)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Waits for all islands that are not lost; IslandError if one of these could not end the step."""
        living = [i for i in self.values.islands if not i.remote or i.error is None]
        for island in living:
            try:
                self.values.wait(island)
            except IslandError:
                if not island.remote or island.error is None:  # another was lost, and this one waited for it
                    raise
        values = np.asarray(_of_living(self.values), dtype)
        if self.digests is not None:
            compare(self.digests)
        return values


def compare(digests: Future) -> None:
    """TrainingError where islands have different parameters, with each one's digest. Lost ones are left out."""
    found = {}
    for island in digests.islands:
        try:
            found[island.name] = tuple(map(int, np.asarray(digests.on(island))))
        except IslandError:
            continue
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {first:08x}{second:08x}" for name, (first, second) in found.items())
        raise TrainingError(
            f"the islands have different parameters ({said}): one of them computed or received something else, so "
            "nothing after can be trusted; resume from the last checkpoint."
        )


def halves(state: Any) -> tuple[Any, Any]:
    """Parameters, and what else a step changes."""
    return state.params, {"step": state.step, "optimizer": state.optimizer}
