"""ladder.json: what was asked for and the runs that it gave, and what another one differs in."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from areca.config import differences, from_dict, to_dict
from areca.errors import ConfigError, DataError
from areca.files import LOCK, leftovers, read_json, write_json
from areca.model.counts import count_params
from areca.train.identity import NO_BIT

if TYPE_CHECKING:
    from areca.study.ladder import Ladder

LADDER = "ladder.json"


def refuse_foreign(directory: Path) -> None:
    """ConfigError if the directory holds something other than a ladder, or than what a killed call of one left."""
    if not directory.is_dir() or (directory / LADDER).exists():
        return
    if {p.name for p in directory.iterdir()} - leftovers(directory, LADDER) - {LOCK}:
        raise ConfigError(f"{directory} is not empty and holds no ladder; choose another --out.")


def settle(ladder: "Ladder") -> None:
    """Writes ladder.json, or compares the one that is there with what is asked."""
    path = ladder.directory / LADDER
    if path.exists():
        refuse_other(ladder, read_json(path), str(ladder.directory), "--out")
    else:
        write_json(path, describe(ladder))


def refuse_other(ladder: "Ladder", there: Any, place: str, option: str) -> None:
    """ConfigError, with what differs, if `there`, the ladder.json of a place, is another ladder's; DataError if it is
    none of this version."""
    try:
        changed = changes(there, describe(ladder))
    except (KeyError, TypeError, AttributeError):
        raise DataError(f"{place}/{LADDER} is not a ladder of this version; choose another {option}.") from None
    if changed:
        more = f"; and {len(changed) - 4} more" if len(changed) > 4 else ""
        raise ConfigError(
            f"{place} holds another ladder ({'; '.join(changed[:4])}{more}); choose another {option} or the same "
            "settings."
        )


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between two ladder.json, as a user would say it: settings first, of runs only if those are equal."""
    was = {"vary": "size", "budgets": old["budgets_flops"], **old.get("settings", {})}  # older ones have no settings
    now = {k: v for k, v in new["settings"].items() if k in was}
    if found := [f"{k}: {_shown(was[k])} -> {_shown(v)}" for k, v in now.items() if was[k] != v]:
        return found
    before, after = ({run["name"]: _settings(run["config"]) for run in record["runs"]} for record in (old, new))
    if before.keys() != after.keys():
        gone, added = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
        words = [
            f"{len(names)} runs {what}, such as {names[0]}" for names, what in ((gone, "less"), (added, "new")) if names
        ]
        return [f"sizes: {' and '.join(words)}"]
    found_in: dict[str, list[str]] = {}
    for name, config in after.items():
        for change in differences(before[name], config):
            found_in.setdefault(change.partition(":")[0], []).append(f"{change} in {name}")
    return [f"{of[0]}{f' and {len(of) - 1} more runs' if len(of) > 1 else ''}" for of in found_in.values()]


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """A run's settings that its numbers depend on, those that an older ladder did not have yet at their defaults."""
    filled = to_dict(from_dict({**config, "data": {"store": ""}}))
    kept = {name: value for name, value in filled.items() if name not in ("data", "checkpoint", "track")}
    kept["islands"] = {name: value for name, value in kept["islands"].items() if name not in NO_BIT}
    return kept


def _shown(value: Any) -> str:
    """A setting's value as a user gives it."""
    return " ".join(f"{v:g}" for v in value) if isinstance(value, list) else str(value)


def describe(ladder: "Ladder") -> dict[str, Any]:
    """The content of ladder.json."""
    return {
        "settings": ladder.settings,
        "budgets_flops": list(ladder.budgets),
        "runs": [
            {
                **j.labels,
                "path": str(j.run_dir.relative_to(ladder.directory)),
                "n_params": count_params(j.config.model).non_embedding,
                "n_tokens": j.config.tokens,
                "learning_rate": j.config.optimizer.learning_rate,
                "config": {k: v for k, v in to_dict(j.config).items() if k != "data"},
            }
            for j in ladder.jobs
        ],
    }
