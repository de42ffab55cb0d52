"""What tells one fitted law from another: a digest of its fitted values, which law.json bears and a plan repeats.

Not of the file: refitting the same rows, another number of samples, or more checks leave the law what it was.
"""

from collections.abc import Mapping
from typing import Any

from areca.files import sha256_json

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


def _six(values: Mapping[str, Any], names: tuple[str, ...] | None = None) -> dict[str, str]:
    """To six significant digits, so that another machine's last bits do not make another law."""
    return {name: f"{float(values[name]):.6g}" for name in (names or sorted(values))}
