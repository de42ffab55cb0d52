"""Reads values that may be anything: what is absent, damaged or not finite becomes None, never a traceback."""

import math
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import json_words, read_json

Ends = tuple[float | None, float | None]  # of an interval; None: without that end


def number(source: Any, key: str) -> float | None:
    """`source[key]` if `source` is an object and that is a finite number, else None."""
    value = source.get(key) if isinstance(source, dict) else None
    return finite(value)


def finite(value: Any) -> float | None:
    """`value` as a float if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # an integer beyond floats
        return None
    return found if math.isfinite(found) else None


def positive(source: Any, key: str) -> float | None:
    """`source[key]` if that is a finite number above 0, else None: sizes, tokens, FLOPs, losses."""
    value = number(source, key)
    return value if value is not None and value > 0 else None


def json_ready(value: Any) -> Any:
    """A value read from JSON without the NaN and infinities that Python's reader lets through."""
    if isinstance(value, dict):
        return {k: json_ready(v) for k, v in value.items()}
    if isinstance(value, list):
        return [json_ready(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


def pair(value: Any) -> tuple[float, float] | None:
    """A list of two finite numbers in order, or None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = finite(value[0]), finite(value[1])
    return None if low is None or high is None else (min(low, high), max(low, high))


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; anything else in it, or anything but a list, is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def an_object(source: Any, key: str) -> dict[str, Any]:
    """`source[key]` if both are objects, else an empty one."""
    value = source.get(key) if isinstance(source, dict) else None
    return value if isinstance(value, dict) else {}


def sentences(value: Any) -> list[str]:
    """The strings of a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def numbers(value: Any) -> list[float | None]:
    """A list's items as finite floats, None for those that are none; empty for anything but a list."""
    return [finite(item) for item in value] if isinstance(value, list) else []


def ends(value: Any) -> Ends | None:
    """A list of two numbers of which either may be null (an interval without that end), or None."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    low, high = finite(value[0]), finite(value[1])
    if low is not None and high is not None and low > high:
        return high, low
    return (low, high)


def at_least(stage: dict[str, Any]) -> bool:
    """Whether a stage took longer than is known: one of its sessions was killed, or it is not over."""
    return bool(stage.get("at_least") or stage.get("running"))


def optional_object(path: Path) -> dict[str, Any] | None:
    """A JSON file's object; None if there is no such file, DataError if it holds anything else."""
    if not path.exists():
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} is {json_words(value)} where an object was expected; restore or remove it.")
    return value
