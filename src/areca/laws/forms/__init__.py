"""Forms: what a law says of its inputs, as small declared objects. A file of a user's own imports from here."""

from areca.laws.forms.form import (
    EXPONENT_STARTS,
    Form,
    Parameter,
    Predict,
    exponent,
    on_the_cpu_in_float64,
    positive,
    real,
    scale,
)

__all__ = [
    "EXPONENT_STARTS", "Form", "Parameter", "Predict", "exponent", "on_the_cpu_in_float64", "positive", "real", "scale",
]  # fmt: skip
