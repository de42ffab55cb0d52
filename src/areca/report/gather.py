"""Reads what a report is made of, from files only: laws, plans, designs, run directories, ladders, quickstarts.

A part that is not there is None and is said in the page; a file that is there and damaged is a DataError. Nothing
here knows how the files were made, so half-finished work and other tools' run directories are read as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import json_kind, json_words, read_json
from areca.lawjson import check_fingerprint, check_format
from areca.report.rundirs import RUN_FILES, Run, distinct, is_run, read_ladder, read_run, runs_under
from areca.report.values import objects, optional_object, positive

DRAWN = ("law", "plan", "design")  # the kinds of file that a page is made of
CHOSEN = ("n_params", "n_params_total", "n_tokens", "steps", "flops_exact", "flops_6nd", "predicted_loss")


@dataclass
class Gathered:
    """Everything found under the paths of one report."""

    kind: str  # "quickstart", "ladder", "runs" or, without runs, "law" or "plan"
    root: Path
    runs: list[Run]  # ladder's runs or the runs given; without the verifying run
    verify: Run | None = None
    law: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    store: dict[str, Any] | None = None
    samples: list[dict[str, Any]] | None = None
    quickstart: dict[str, Any] | None = None
    design: dict[str, Any] | None = None
    missing: list[str] = field(default_factory=list)  # sentences

    @property
    def all_runs(self) -> list[Run]:
        """The runs, the verifying one last."""
        return [*self.runs, self.verify] if self.verify else list(self.runs)


def gather(paths: Sequence[Path | str]) -> Gathered:
    """Reads any of: law.json, plan.json, design.json; a quickstart's directory, a ladder's, run directories.

    DataError names a path that is none of these, a second law, plan or design, and a file that is damaged.
    """
    found = [Path(path) for path in paths]
    if not found:
        raise DataError("a report needs a law.json, or the directory of a quickstart, a ladder or a run.")
    for path in found:
        if not path.exists():
            raise DataError(
                f"{path} does not exist; give a law.json, a plan.json, or the directory of a quickstart, a ladder or "
                "a run."
            )
    files: dict[str, dict[str, Any]] = {}
    for path in found:
        if not path.is_dir():
            kind, value = _read_file(path)
            if kind in files:
                raise DataError(f"{path} is a second {kind}; a report shows one, so give each its own report.")
            files[kind] = value
    gathered = _gather_directories([path for path in found if path.is_dir()], found[0])
    gathered.law = files.get("law", gathered.law)
    gathered.design = files.get("design", gathered.design)
    if "plan" in files:
        gathered.plan = read_plan(files["plan"])
    if gathered.kind == "law" and gathered.law is None:
        gathered.kind = "plan"
    return gathered


def read_plan(value: dict[str, Any] | None) -> dict[str, Any] | None:
    """plan.json with the chosen run's figures at its top level, whether it has them there or under `best`.

    A plan for a target loss holds the run to buy under `sure`.
    """
    if value is None:
        return None
    if isinstance(value.get("sure"), dict):
        kept = {k: value[k] for k in ("target_loss", "neighbours", "warnings") if k in value}
        value = {**value["sure"], **kept}
    best = value["best"] if isinstance(value.get("best"), dict) else {}
    plan = {k: best[k] for k in CHOSEN if k in best} | value
    plan.setdefault("interval_90", value.get("interval"))
    baseline = positive(value.get("baseline"), "loss")
    if baseline is not None:
        plan.setdefault("naive_baseline_loss", baseline)
    return plan


def _read_file(path: Path) -> tuple[str, dict[str, Any]]:
    if path.suffix != ".json":
        raise DataError(f"{path} is no .json file; of a table of runs `areca fit {path} --out law.json` makes a law.")
    value = read_json(path)
    kind = json_kind(value)
    if kind in DRAWN:
        return kind, _unchanged(value, path) if kind == "law" else value
    if kind in ("run", "result"):
        needed = f"name the directory of the run, {path.parent}"
    elif kind in ("quickstart", "ladder", "report"):
        needed = f"name its directory, {path.parent}, or a law.json, a plan.json or a design.json"
    else:
        needed = "give a law, a plan or a design, which `areca fit`, `areca plan` and `areca design` write with --out"
    raise DataError(f"{path} is {json_words(value)}, which no page is made of; {needed}.")


def _unchanged(law: dict[str, Any], path: Path) -> dict[str, Any]:
    """The law; DataError for one of another format, or whose values are not those that were fitted.

    Other parts may be odd or missing: the page says so, and draws what another tool wrote.
    """
    check_format(law, str(path))
    check_fingerprint(law, str(path))
    return law


def _gather_directories(found: list[Path], root: Path) -> Gathered:
    if not found:
        return Gathered("law", root, [])
    if len(found) == 1 and _is_quickstart(found[0]):
        return _gather_quickstart(found[0])
    runs: list[Run] = []
    missing: list[str] = []
    for path in found:
        of, unfinished = runs_under(path)
        if not of and not unfinished and not (path / "law.json").is_file():
            files = f"{', '.join(RUN_FILES[:-1])} or {RUN_FILES[-1]}"
            raise DataError(f"{path} holds no run: there is no {files} in it or one level below.")
        runs, missing = runs + of, missing + unfinished
    law = plan = design = None
    if len(found) == 1:  # what else stands beside the runs
        law, plan, design = (optional_object(found[0] / f"{kind}.json") for kind in ("law", "plan", "design"))
        law = law and _unchanged(law, found[0] / "law.json")
    kind = "ladder" if len(found) == 1 and (found[0] / "ladder.json").is_file() else "runs" if runs else "law"
    runs = runs if kind == "ladder" else distinct(runs)
    return Gathered(kind, root, runs, law=law, plan=read_plan(plan), design=design, missing=missing)


def _is_quickstart(path: Path) -> bool:
    """Its record, or a ladder with what only comes after it."""
    if (path / "quickstart.json").is_file():
        return True
    return (path / "ladder" / "ladder.json").is_file() and is_run(path / "verify")


def _gather_quickstart(root: Path) -> Gathered:
    missing: list[str] = []

    def part(name: str, what: str) -> dict[str, Any] | None:
        value = optional_object(root / name)
        if value is None:
            missing.append(f"{what} ({name}) is not there yet.")
        return value

    store = part("store/store.json", "The token store")
    runs: list[Run] = []
    if (root / "ladder" / "ladder.json").is_file():
        runs, unfinished = read_ladder(root / "ladder")
        missing += unfinished
    else:
        missing.append("The ladder (ladder/ladder.json) is not there yet.")
    law = part("law.json", "The fitted law")
    law = law and _unchanged(law, root / "law.json")
    plan = read_plan(part("plan.json", "The plan"))
    verify = None
    if is_run(root / "verify"):
        verify = read_run(root / "verify", "verifying run")
        if verify.result is None:
            missing.append("The verifying run (verify/) has not finished.")
    else:
        missing.append("The verifying run (verify/) is not there yet.")
    samples = None
    if (root / "samples.json").exists():
        samples = objects(read_json(root / "samples.json"))
    else:
        missing.append("The samples (samples.json) are not there yet.")
    quickstart = part("quickstart.json", "The record of the quickstart")
    design = optional_object(root / "design.json")
    return Gathered("quickstart", root, runs, verify, law, plan, store, samples, quickstart, design, missing)
