"""One process at a time in the directory of a family of runs."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from areca.files import locked

Given = ParamSpec("Given")
Made = TypeVar("Made")


class Family(Protocol):
    """What has a directory of its own."""

    @property
    def directory(self) -> Path: ...


def alone(work: Callable[Concatenate[Any, Given], Made]) -> Callable[Concatenate[Any, Given], Made]:
    """`work`, with the directory of its first argument, a Family, locked; BusyError if another process is in it."""

    @functools.wraps(work)
    def in_lock(family: Family, /, *args: Given.args, **kwargs: Given.kwargs) -> Made:
        with locked(family.directory):
            return work(family, *args, **kwargs)

    return in_lock
