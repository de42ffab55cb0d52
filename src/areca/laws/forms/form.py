"""A scaling law as a declared object: its parameters, inputs, units and equation. `areca.laws.fits.fitting` fits any.

A law of your own takes ten lines; `predict` is written with jax.numpy or plain arithmetic and gets its derivatives from
there:

    from areca.laws import Form, exponent, positive, scale

    form = Form(
        name="power-law-of-tokens",
        equation="L(D) = E + (D_c / D)^a",
        inputs=("n_tokens",),
        parameters=(positive("E", "nats"), scale("D_c", "tokens", of="n_tokens", exponent="a"), exponent("a")),
        predict=lambda p, x: p.E + (p.D_c / x.n_tokens) ** p.a,
    )

The forms of the papers are in `areca.laws.forms.declared`, by name in `areca.laws.forms.catalog`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from areca.errors import ConfigError, closest

EXPONENT_STARTS = (0.08, 0.16, 0.25, 0.35, 0.47, 0.62, 0.82, 1.1)
Predict = Callable[[Any, Any], Any]  # (parameters, inputs) by attribute -> the response, [n]


@dataclass(frozen=True)
class Parameter:
    """One parameter: the range it may lie in and where fits start from.

    `log`: it is searched by its logarithm, and so positive. A scale `of` an input gets its start from the rows: the
    value at which (scale / input)^exponent is the response in the middle of the rows.
    """

    name: str
    unit: str = ""
    low: float = -np.inf
    high: float = np.inf
    log: bool = False
    starts: tuple[float, ...] = (0.0,)
    of: str = ""
    exponent: str = ""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigError(f"a parameter is called {self.name!r}; give it a name such as alpha.")
        if not self.starts and not self.of:
            raise ConfigError(f"{self.name} has no starts; give at least one value to search from.")
        if not self.low < self.high:
            raise ConfigError(f"{self.name} lies between {self.low} and {self.high}; give a range that is not empty.")
        if self.log and not self.low > 0:
            raise ConfigError(
                f"{self.name} is searched by its logarithm, so its lowest value, {self.low}, must be positive."
            )

    def inner(self, value: Any) -> Any:
        """The value as it is searched: its logarithm, or itself."""
        return np.log(value) if self.log else value


def positive(
    name: str, unit: str = "", *, starts: tuple[float, ...] = (0.1, 1.0, 10.0), low: float = 1e-9, high: float = 1e30
) -> Parameter:
    """A positive amplitude, such as a loss floor E."""
    return Parameter(name, unit, low, high, log=True, starts=starts)


def scale(name: str, unit: str, *, of: str, exponent: str) -> Parameter:
    """A positive scale in units of the input `of`, such as N_c in (N_c / N)^alpha."""
    return Parameter(name, unit, 1e-60, 1e100, log=True, of=of, exponent=exponent)


def exponent(
    name: str, *, low: float = 0.01, high: float = 3.0, starts: tuple[float, ...] = EXPONENT_STARTS
) -> Parameter:
    """An exponent, positive unless `low` says otherwise."""
    return Parameter(name, "", low, high, starts=starts)


def real(name: str, unit: str = "", *, low: float, high: float, starts: tuple[float, ...]) -> Parameter:
    """A number between two others."""
    return Parameter(name, unit, low, high, starts=starts)


@dataclass(frozen=True)
class Form:
    """A law: response = predict(parameters, inputs).

    `inputs` and `response` are names of columns (n_params, n_tokens, flops, loss, and what a table has besides).
    Residuals are taken of the logarithm of the response (`compare` "log", for losses) or of itself ("linear", for
    scores). Parameters named in `linear` enter the response linearly when the others are held, and are then found by
    least squares in every start (variable projection). `constants` are numbers in the equation that are not fitted.
    """

    name: str
    equation: str
    inputs: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    predict: Predict
    response: str = "loss"
    response_unit: str = "nats per token"
    compare: Literal["log", "linear"] = "log"
    linear: tuple[str, ...] = ()
    constants: Mapping[str, float] = field(default_factory=dict)
    domain: str = ""  # where the law is meant to hold, in words
    source: str = ""  # the paper and its equation
    derived: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)  # quantities of the parameters alone
    begin: "Form | None" = None  # a simpler law: the parameters in common start where it fits

    def __post_init__(self) -> None:
        _check_parts(self)
        names = [p.name for p in self.parameters]
        if unknown := [n for n in self.linear if n not in names]:
            raise ConfigError(f"{self.name} says that {unknown[0]!r} enters linearly; its parameters are {names}.")
        for p in self.parameters:
            if p.exponent and p.exponent not in [*names, *self.constants]:
                raise ConfigError(
                    f"{self.name}: the scale {p.name} names the exponent {p.exponent!r}, which is no parameter."
                )
            if p.of and p.of not in self.inputs:
                raise ConfigError(
                    f"{self.name}: the scale {p.name} is of {p.of!r}, which is no input; those are "
                    f"{', '.join(self.inputs)}."
                )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    def fixed(self, **values: float) -> "Form":
        """The same law with some parameters held at given values, by their names."""
        if unknown := [n for n in values if n not in self.names]:
            raise ConfigError(f"{self.name} has no parameter {unknown[0]!r}{closest(unknown[0], self.names)}.")
        return replace(
            self,
            parameters=tuple(p for p in self.parameters if p.name not in values),
            linear=tuple(n for n in self.linear if n not in values),
            begin=self.begin if self.begin and not set(self.begin.names) & set(values) else None,
            constants={**self.constants, **values},
        )

    def inner(self, values: Mapping[str, Any]) -> np.ndarray:
        """Parameters by name -> [p] as searched."""
        return np.array([p.inner(values[p.name]) for p in self.parameters], dtype=np.float64)

    def values(self, theta: np.ndarray) -> dict[str, Any]:
        """[..., p] as searched -> each parameter by name, [...]."""
        columns = np.moveaxis(np.asarray(theta, np.float64), -1, 0)
        return {p.name: np.exp(c) if p.log else c for p, c in zip(self.parameters, columns, strict=True)}


def _check_parts(form: Form) -> None:
    """ConfigError where a form is not made of what it has to be made of, as a form of a user's may not be."""
    names: dict[str, int] = {}
    for part, kind, example in (("inputs", str, '("n_tokens",)'), ("parameters", Parameter, '(positive("E"),)')):
        value = getattr(form, part)
        if not isinstance(value, tuple | list) or not value or not all(isinstance(v, kind) for v in value):
            raise ConfigError(f"{form.name} has {part} = {str(value)[:60]!r}; give a tuple of them, as {example}.")
    for p in form.parameters:
        names[p.name] = names.get(p.name, 0) + 1
    if twice := [n for n, count in names.items() if count > 1 or n in form.constants]:
        raise ConfigError(f"{form.name} names the parameter {twice[0]!r} twice; give each a name of its own.")
    if form.response in form.inputs:
        raise ConfigError(f"{form.name} has {form.response!r} as its response and as an input; it can be one only.")
    if form.compare not in ("log", "linear"):
        raise ConfigError(f"{form.name} has compare = {form.compare!r}; it can be 'log' or 'linear'.")
    if not callable(form.predict):
        raise ConfigError(
            f"{form.name} has predict = {str(form.predict)[:60]!r}; give a function of parameters and inputs, as "
            "lambda p, x: p.E + x.n_tokens ** -p.a."
        )


@contextlib.contextmanager
def on_the_cpu_in_float64() -> Iterator[None]:
    """Where forms are evaluated: jax in float64 on the CPU, with numpy's rules for mixing types and shapes."""
    import jax

    with (
        jax.enable_x64(True),
        jax.default_device(jax.local_devices(backend="cpu")[0]),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


__all__ = ["EXPONENT_STARTS", "Form", "Parameter", "exponent", "on_the_cpu_in_float64", "positive", "real", "scale"]
