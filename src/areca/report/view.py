"""What the sections of a page share: the files read, the points of the law, and the figures drawn so far."""

from dataclasses import dataclass, field
from typing import Any

from areca.report.figures import Budgets, Figure
from areca.report.gather import Gathered
from areca.report.law import Law, Point
from areca.report.lawfile import fitted_and_new, points_of, read_law, with_count_of
from areca.report.markup import absent, note, plot
from areca.report.origin import Origin, origin_of


@dataclass
class View:
    """One page in the making. `drawn` holds its figures by the name of their place, in order."""

    found: Gathered
    law: Law | None
    points: list[Point]  # what the law was fitted to
    new: list[Point]  # runs it has not seen
    new_name: str
    budgets: Budgets
    origin: Origin | None = None  # of the plan
    design_origin: Origin | None = None
    drawn: dict[str, Figure] = field(default_factory=dict)

    @staticmethod
    def of(found: Gathered) -> "View":
        """The view of what was gathered."""
        law = read_law(found.law)
        law = with_count_of(law, found.all_runs) if law else None
        points, new = fitted_and_new(found.runs, law)
        new_name = "runs not fitted"
        if found.verify is not None:
            new, new_name = points_of([found.verify], law), "verifying run"
        budgets = [p.budget_flops for p in points] + [v.budget_flops for v in (law.valleys if law else [])]
        budgets += [run.budget_flops for run in found.runs]
        origins = origin_of("plan", found.plan, law), origin_of("design", found.design, law)
        return View(found, law, points, new, new_name, Budgets(budgets), *origins)

    @property
    def plan(self) -> dict[str, Any] | None:
        """The plan, for the figures of the page's law; None where it is of another law."""
        return None if self.origin is None or self.origin.apart else self.found.plan

    @property
    def notes(self) -> list[str]:
        """Sentences on what is not of this page's law, or may not be."""
        return [o.said for o in (self.origin, self.design_origin) if o and o.said]

    def place(
        self, name: str, label: str, made: Figure | None, otherwise: str = "", words: str = "", height: int = 420
    ) -> str:
        """The place of a figure with its explanation; a sentence, or nothing, where there is no figure."""
        if made is None:
            return absent(otherwise) if otherwise else ""
        self.drawn[name] = made
        return plot(name, label, height) + (note(words) if words else "")
