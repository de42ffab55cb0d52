"""Any setting of a configuration on the command line: `--model.d_model 256 --tokens 1e8 --batch.ramp "[[0, 32]]"`.

A value is written as in TOML; text needs no quotes. What is given here counts over what the file says, field by field.
"""

import tomllib
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from areca.config import RunConfig, from_dict, read_table
from areca.errors import ConfigError, closest

ROOMS = tuple(name for name, hint in get_type_hints(RunConfig).items() if is_dataclass(hint))
SINGLE = tuple(f.name for f in fields(RunConfig) if f.name not in (*ROOMS, "init_from"))  # tokens, seed, ...


def split(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """The arguments without settings, and these by dotted name. ConfigError for one without a value, or given twice."""
    rest: list[str] = []
    found: dict[str, str] = {}
    left = list(argv)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*rest, word, *left], found
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if not option.startswith("--") or not ("." in name or name in SINGLE):
            rest.append(word)
            continue
        if not equals:
            if not left:
                raise ConfigError(f"{option} has no value; give it one, as in {option} VALUE.")
            value = left.pop(0)
        if name in found:
            raise ConfigError(f"{option} is given twice; give it once.")
        found[name] = value
    return rest, found


def load(path: str, given: dict[str, str]) -> RunConfig:
    """The RunConfig in a TOML or JSON file with these settings in place of its own. ConfigError as for the file."""
    return overlaid(read_table(path), given, path)


def overlaid(table: Any, given: dict[str, str], path: str) -> RunConfig:
    """The RunConfig of a table that was read from `path`, with these settings in place of its own."""
    for name, text in given.items() if isinstance(table, dict) else ():
        *rooms, last = name.split(".")
        if rooms and rooms[0] not in ROOMS:
            raise ConfigError(f"--{name} is no setting: there is no [{rooms[0]}]{closest(rooms[0], ROOMS)}.")
        at: Any = table
        for room in rooms:
            at = at.setdefault(room, {})
            if not isinstance(at, dict):
                raise ConfigError(f"--{name} can't be set: {room} is not a table in {path}.")
        at[last] = _value(text)
    return from_dict(table, RunConfig, f"{path.rpartition('/')[2]}: " if not given else "")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a word without quotes
