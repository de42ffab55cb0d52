"""What whoever watches a run hears: numbers after each step, sentences now and then."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What a listener hears after each step that has been read back. `loss` is the step's training loss."""

    run: str
    step: int
    steps: int
    tokens: int
    total_tokens: int
    loss: float
    tokens_per_second: float
    mfu: float | None
    seconds_left: float


Listener = Callable[[Progress], None]
Say = Callable[[str], None]
