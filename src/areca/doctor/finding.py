"""What a probe hands back: values, what could not be found out, and problems with their way out."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One sentence: the thing, the value, the way out. `stops`: a run would not begin, or not get to its end."""

    says: str
    stops: bool = False


@dataclass
class Finding:
    """Of one probe. `lines` are for people, `values` for machines; a value that is None could not be found out."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, says: str, stops: bool = False) -> None:
        self.problems.append(Problem(says, stops))


def size(value: float | None) -> str:
    """Bytes in words, or that they are not known."""
    if value is None:
        return "unknown"
    for step, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= step:
            return f"{value / step:.1f} {unit}"
    return f"{value:.0f} B"
