"""The declared forms by name, and a user's own from a file: what `areca fit --form` takes, and what it makes of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from areca.errors import ConfigError, closest
from areca.lawjson import fingerprint
from areca.laws.forms import Form
from areca.laws.forms.declared import (
    B_CRIT,
    BATCH,
    BROKEN,
    CHINCHILLA,
    COMPUTE_FLOOR,
    D_OPT,
    DATA_CONSTRAINED,
    KAPLAN_C,
    KAPLAN_C_MIN,
    KAPLAN_D,
    KAPLAN_N,
    KAPLAN_ND,
    KAPLAN_NS,
    LEARNING_RATE,
    N_OPT,
    SCORE,
)
from areca.laws.forms.own import form_from_file
from areca.laws.kaplan import A_B, B_STAR, critical_batch

FORMS: dict[str, Form] = {
    f.name: f
    for f in (
        CHINCHILLA, KAPLAN_N, KAPLAN_D, KAPLAN_C, KAPLAN_C_MIN, KAPLAN_ND, KAPLAN_NS, B_CRIT, N_OPT, D_OPT,
        DATA_CONSTRAINED, COMPUTE_FLOOR, BROKEN, SCORE, LEARNING_RATE, BATCH,
    )
}  # fmt: skip


def find_form(name: str) -> Form:
    """The declared form of that name, or the one in `FILE.py:NAME`. ConfigError where there is none."""
    if name.partition(":")[0].endswith(".py"):
        return form_from_file(name)
    if name not in FORMS:
        raise ConfigError(
            f"there is no law {name!r}{closest(name, FORMS)}; name one of {', '.join(FORMS)}, or a Form of your own as "
            "FILE.py:NAME."
        )
    return FORMS[name]


def fit_forms(
    names: Sequence[str], paths: Sequence[str | Path], reading: dict[str, Any], settings: dict[str, Any]
) -> dict[str, Any]:
    """law.json of the forms named, each fitted to what it needs of the paths: `reading` as of `load`, `settings` as of
    `fit_laws`. Raises what finding, reading and fitting raise."""
    from areca.laws.form_report import report_form

    settings = dict(settings)
    drop = settings.pop("drop_highest", 0)
    reports, notes = [], []
    for form in map(find_form, names):
        data, said = _data(form, paths, reading)
        if drop:
            data, dropped = _without_highest(form, data, drop)
            said = [*said, dropped]
        found = report_form(form, data["columns"], groups=data["group"], **settings).to_dict()
        columns = {name: data["described"][name] for name in form.inputs if name in data["described"]}
        reports.append({**found, "notes": [*found["notes"], *said], "rows": data["label"], "columns": columns})
        notes += [n for n in found["notes"] if n not in notes]
    law = {"format": 1, "parametric": None, "forms": reports, "seed": settings.get("seed", 0), "notes": notes}
    return {**law, "fingerprint": fingerprint(law)}


def _data(form: Form, paths: Sequence[str | Path], reading: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """{"columns", "group", "label", "described"} of what a form needs, with S_min and C_min worked out where they have
    no column."""
    from areca.laws.reading.tables import load_columns

    mapping = {k: reading[k] for k in ("n_params", "n_tokens", "flops", "loss") if reading.get(k)}
    mapping |= reading.get("columns") or {}
    others = {k: reading[k] for k in ("group", "units", "where", "duplicates", "flops_kind", "rates") if k in reading}
    needed = list(dict.fromkeys((*form.inputs, form.response)))
    adjusted = {"steps_min": "steps", "flops_min": "flops"}
    made = [n for n in needed if n in adjusted and n not in mapping]
    wanted = [n for n in needed if n not in made]
    for name in made:
        wanted += [n for n in (adjusted[name], "batch_tokens", "loss") if n not in wanted]
    found = load_columns(paths, wanted, mapping, **others)
    values, notes = dict(found.values), list(found.notes)
    for name in made:
        b_crit = critical_batch(values["loss"])
        ratio = b_crit / values["batch_tokens"] if name == "steps_min" else values["batch_tokens"] / b_crit
        values[name] = values[adjusted[name]] / (1 + ratio)
        notes.append(
            f"{name} is worked out with the published B_crit(L) = {B_STAR / 1e8:g}e8 tokens / L^(1 / {A_B:g})."
        )
    columns = {n: values[n] for n in needed}
    known = {"group": found.group, "label": list(found.label), "described": found.described}
    return {"columns": columns, **known}, notes


def _without_highest(form: Form, data: dict[str, Any], count: int) -> tuple[dict[str, Any], str]:
    """Without the `count` rows of highest response (and any as high as the last of them)."""
    values = data["columns"][form.response]
    if not 0 <= count < len(values):
        raise ConfigError(f"drop_highest is {count}; give how many of the {len(values)} rows to leave out.")
    keep = np.flatnonzero(values < np.sort(values)[-count])
    kept = {
        "columns": {k: v[keep] for k, v in data["columns"].items()},
        "group": tuple(data["group"][i] for i in keep) if data["group"] else (),
        "label": [data["label"][i] for i in keep],
        "described": data["described"],
    }
    return kept, f"left out the {len(values) - len(keep)} rows of highest {form.response}, as asked."


__all__ = ["FORMS", "find_form", "fit_forms"]
