"""What a law.json must be before anyone reads on: of a known format, of finite numbers, with the values of its fit.

A digest of a law's fitted values tells it from another: law.json bears it and a plan repeats it. It is not of the file:
refitting the same rows, another number of samples, or more checks leave the law what it was.
"""

import math
from collections.abc import Mapping
from typing import Any

from areca.errors import DataError
from areca.files import sha256_json

FORMAT = 1
AGAIN = "fit it again (`areca fit`)"

# Parts of law.json, what each is where it is not null, and numbers it must have.
PARTS: dict[str, tuple[type, tuple[str, ...]]] = {
    "parametric": (dict, ("level", "sigma", "delta", "n_points", "bootstrap_failed")),
    "average": (list, ()),
    "isoflop": (dict, ()),
    "compute": (dict, ("exponent", "c_c_flops")),
    "compute_with_floor": (dict, ("exponent", "c_c_flops")),
    "validation": (dict, ("mean_error", "stretch")),
    "observations": (list, ()),
    "columns": (dict, ()),
    "notes": (list, ()),
    "sources": (list, ()),
    "leave_one_out": (list, ()),
    "curvature": (list, ()),
    "intervals_by": (dict, ()),
    "sensitivity": (dict, ()),
}

VALUES = ("A", "B", "E", "alpha", "beta")
DIGITS = 16  # hexadecimal, of the SHA-256


def fingerprint(law: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of law.json's content: of A, B, E, alpha and beta of L(N, D), of each coupling with its
    weight, and of the values of other forms, to six digits."""
    parametric, average = law.get("parametric"), law.get("average") or []
    return sha256_json(
        {
            "parametric": _six(parametric, VALUES) if parametric else None,
            "average": [_six(form, ("weight", "coupling", *VALUES)) for form in average],
            "forms": [
                [str(form["form"]), _six(form["values"]), _six(form.get("constants") or {})]
                for form in law.get("forms") or []
            ],
        }
    )[:DIGITS]


def check_law(law: Mapping[str, Any], where: str) -> None:
    """DataError unless law.json's content is of `FORMAT`, all its numbers are finite, and its fingerprint fits."""
    if "format" not in law:
        raise DataError(f"{where} is not a law written by `areca fit` (it has no format); fit it again.")
    check_format(law, where)
    if not isinstance(law.get("fingerprint"), str | None):
        raise DataError(f"{where}: fingerprint is {law['fingerprint']!r:.40}, where a text belongs; {AGAIN}.")
    check_finite(law, where)
    check_parts(law, where)
    check_fingerprint(law, where)


def check_format(law: Mapping[str, Any], where: str) -> None:
    """DataError for a format of another version."""
    if law.get("format", FORMAT) != FORMAT or isinstance(law.get("format"), bool):
        raise DataError(f"{where} has format {law['format']!r}, and this version of Areca reads {FORMAT}; {AGAIN}.")


def check_finite(value: Any, where: str, name: str = "") -> None:
    """DataError for the first NaN or infinity, which JSON does not have but Python reads, by its place."""
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{where}: {name} is {value}, where a finite number belongs; {AGAIN}.")
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        check_finite(item, where, f"{name}.{key}".lstrip("."))


def check_fingerprint(law: Mapping[str, Any], where: str) -> None:
    """DataError where the fitted values are no numbers, or not those of the fingerprint, where there is one."""
    parametric, average = law.get("parametric"), law.get("average") or []
    members = [("parametric", parametric)] if parametric else []
    members += [(f"average.{i}", form) for i, form in enumerate(average)] if isinstance(average, list) else []
    for name, member in members:
        for key in VALUES if isinstance(member, Mapping) else ():
            if key in member:
                check_number(member[key], where, f"{name}.{key}")
    if not isinstance(mark := law.get("fingerprint"), str):
        return
    try:
        # A fit writes L(N, D) or other forms; forms that were put beside it are not of its fingerprint.
        found = fingerprint({**law, "forms": []} if parametric else law)
    except (KeyError, TypeError, ValueError, AttributeError):
        return  # a part is missing, which the reader of that part says
    if mark != found:
        raise DataError(
            f"{where} bears the fingerprint {mark}, and its values have {found}: they were changed after the fit; "
            f"restore it or {AGAIN}."
        )


def check_parts(values: Mapping[str, Any], where: str) -> None:
    """DataError for a part of another type than `to_dict` writes, or a text where a number belongs."""
    for name, (kind, numbers) in PARTS.items():
        part = values.get(name)
        if part is None:
            continue
        if not isinstance(part, kind):
            what = "an object" if kind is dict else "a list"
            raise DataError(f"{where}: {name} is {part!r:.40}, where {what} belongs; {AGAIN}.")
        for key in numbers:
            check_number(part.get(key), where, f"{name}.{key}")
    for name in ("notes", "sources"):
        if not all(isinstance(item, str) for item in values.get(name) or []):
            raise DataError(f"{where}: {name} holds something else than texts; {AGAIN}.")


def check_number(value: Any, where: str, name: str) -> None:
    """DataError unless it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
        raise DataError(f"{where}: {name} is {value!r}, where a finite number belongs; {AGAIN}.")


def _six(values: Mapping[str, Any], names: tuple[str, ...] | None = None) -> dict[str, str]:
    """To six significant digits, so that another machine's last bits do not make another law."""
    return {name: f"{float(values[name]):.6g}" for name in (names or sorted(values))}
