"""What a law was held to, read from law.json: budgets left out, curvature, choices. Absent parts are None or empty."""

from dataclasses import dataclass, field
from typing import Any

from areca.report.values import Ends, an_object, ends, number, objects, positive

CHOSEN = ("n_exponent", "alpha", "beta", "E", "n_opt", "predicted_loss")  # what a choice may move


@dataclass(frozen=True)
class HeldRun:
    """A run that was left out and predicted."""

    label: str
    n_params: float | None
    n_tokens: float | None
    flops: float | None
    loss: float
    predicted: float
    interval: Ends | None

    @property
    def error(self) -> float:
        """Predicted over achieved, minus 1."""
        return self.predicted / self.loss - 1

    @property
    def inside(self) -> bool | None:
        """Whether its loss lies in the interval; None without one."""
        if self.interval is None or None in self.interval:
            return None
        low, high = self.interval
        return bool((low or 0.0) <= self.loss <= (high or 0.0))


@dataclass(frozen=True)
class HeldOut:
    """One budget left out and predicted from the others."""

    budget_flops: float | None
    rows: int | None
    mean_error: float | None
    worst_error: float | None
    held: int | None
    level: float
    stretch: float | None  # the budget over the largest left in
    points: list[HeldRun] = field(default_factory=list)


@dataclass(frozen=True)
class Curvature:
    """A test for a bend that the law's form does not have."""

    of: str
    coefficient: float | None
    interval: Ends | None
    p_value: float | None
    says: str


@dataclass(frozen=True)
class Choice:
    """The law fitted with another choice."""

    name: str
    n_points: float | None
    values: dict[str, float]
    failed: str | None


@dataclass(frozen=True)
class Checks:
    """All of them."""

    largest: HeldOut | None = None
    left_out: list[HeldOut] = field(default_factory=list)
    curvature: list[Curvature] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    choices_at: float | None = None  # FLOPs that the choices' optimum and loss are of


def read_checks(value: dict[str, Any]) -> Checks:
    """The checks of law.json."""
    table = an_object(value, "sensitivity")
    largest = value.get("validation")
    return Checks(
        largest=_held_out(largest) if isinstance(largest, dict) else None,
        left_out=[_held_out(item) for item in objects(value.get("leave_one_out"))],
        curvature=[c for c in map(_curvature, objects(value.get("curvature"))) if c],
        choices=[_choice(item) for item in objects(table.get("rows"))],
        choices_at=positive(table, "flops"),
    )


def _held_out(item: dict[str, Any]) -> HeldOut:
    level = positive(item, "level") or 0.90
    rows, held = number(item, "rows"), number(item, "held")
    return HeldOut(
        budget_flops=positive(item, "budget_flops"),
        rows=None if rows is None else int(rows),
        mean_error=number(item, "mean_error"),
        worst_error=number(item, "worst_error"),
        held=None if held is None else int(held),
        level=level if level < 1 else 0.90,
        stretch=positive(item, "stretch"),
        points=[p for p in map(_held_run, objects(item.get("points"))) if p],
    )


def _held_run(item: dict[str, Any]) -> HeldRun | None:
    loss, predicted = positive(item, "loss"), positive(item, "predicted")
    if loss is None or predicted is None:
        return None
    bounds = ends([item.get("low"), item.get("high")])
    return HeldRun(
        label=short_label(str(item.get("label", "a run"))),
        n_params=positive(item, "n_params"),
        n_tokens=positive(item, "n_tokens"),
        flops=positive(item, "flops"),
        loss=loss,
        predicted=predicted,
        interval=None if bounds == (None, None) else bounds,
    )


def short_label(label: str) -> str:
    """A row's name without the directories of its table: "/data/runs.csv line 3" -> "runs.csv line 3"."""
    return label.rsplit("/", 1)[-1] if " line " in label else label


def _curvature(item: dict[str, Any]) -> Curvature | None:
    of, says = item.get("of"), item.get("says")
    coefficient = number(item, "coefficient")
    if coefficient is None and not isinstance(says, str):
        return None
    return Curvature(
        of=of if isinstance(of, str) else "not named",
        coefficient=coefficient,
        interval=ends(item.get("interval")),
        p_value=number(item, "p_value"),
        says=says if isinstance(says, str) else "",
    )


def _choice(item: dict[str, Any]) -> Choice:
    name, failed = item.get("choice"), item.get("failed")
    values = {key: v for key in (*CHOSEN, "A", "B") if (v := number(item, key)) is not None}
    return Choice(
        name=name if isinstance(name, str) else "not named",
        n_points=number(item, "n_points"),
        values=values,
        failed=failed if isinstance(failed, str) and failed else None,
    )
