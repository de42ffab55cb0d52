"""Whether a form's equation can be fitted: traced once before a fit, and looked at where no start gives a number."""

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from areca.errors import ConfigError, FitError
from areca.laws.fits.engine import Rows, evaluate, prepare
from areca.laws.forms import Form, Predict, on_the_cpu_in_float64


def check_predict(form: Form) -> None:
    """ConfigError unless the form's `predict` gives a number for each row, in terms of what the form has."""
    prepare()
    _trace(form.predict, form.name, form.names, form.inputs, tuple(form.constants))


@lru_cache(maxsize=128)
def _trace(
    predict: Predict, title: str, names: tuple[str, ...], inputs: tuple[str, ...], constants: tuple[str, ...]
) -> None:
    import jax

    def one(parameters: Any, x: Any) -> Any:
        return predict(SimpleNamespace(**parameters), SimpleNamespace(**x))

    with on_the_cpu_in_float64():
        parameters = dict.fromkeys((*names, *constants), jax.ShapeDtypeStruct((), np.float64))
        x = dict.fromkeys(inputs, jax.ShapeDtypeStruct((3,), np.float64))
        try:
            found = jax.eval_shape(one, parameters, x)
        except AttributeError as error:
            if error.name is None or not isinstance(error.obj, SimpleNamespace):
                raise ConfigError(_unusable(title, error)) from None
            raise ConfigError(
                f"predict of {title} asks for {error.name!r}, which it has not: its parameters are {', '.join(names)}, "
                f"its inputs {', '.join(inputs)}."
            ) from None
        except Exception as error:  # whatever a user's equation raises
            raise ConfigError(_unusable(title, error)) from None
    shape = getattr(found, "shape", None)
    if shape != (3,) or found.dtype != np.float64:
        given = "nothing" if found is None else f"an array of shape {shape}" if shape else "one number"
        raise ConfigError(
            f"predict of {title} gives {given} for 3 rows; it has to give a number for each row, an array of shape "
            f"(3,) that follows from x.{inputs[0]}."
        )


def _unusable(title: str, error: Exception) -> str:
    return (
        f"predict of {title} can't be evaluated ({type(error).__name__}: {str(error).partition(chr(10))[0][:120]}); "
        "write it with jax.numpy or plain arithmetic on whole columns, without if, math or numpy."
    )


def refuse_no_number(form: Form, rows: Rows, theta: np.ndarray) -> None:
    """FitError where the equation gives no number in some row from wherever it starts."""
    with np.errstate(all="ignore"):
        at_start = evaluate(form, form.values(theta), rows.inputs)
    usable = np.isfinite(at_start) & ((at_start > 0) | (form.compare != "log"))
    if usable.all(axis=1).any():
        return
    i = int(np.flatnonzero(~usable[0])[0])
    at = ", ".join(f"{k} = {v:.3g}" for k, v in form.values(theta[0]).items())
    inputs = ", ".join(f"{k} = {v[i]:.4g}" for k, v in rows.inputs.items())
    log = ", whose logarithm is compared" if form.compare == "log" else ""
    raise FitError(
        f"the equation of {form.name} gives {at_start[0, i]:.3g}{log}, in row {i + 1} ({inputs}) with {at}, and so "
        f"from each of {len(theta)} starts; correct its predict, or the starts of its parameters."
    )


__all__ = ["check_predict", "refuse_no_number"]
