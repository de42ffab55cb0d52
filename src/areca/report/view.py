"""What the sections of a page share: the files read, the points of the law, and the figures drawn so far."""

from dataclasses import dataclass, field

from areca.report.figures import Budgets, Figure
from areca.report.gather import Gathered
from areca.report.law import Law, Point
from areca.report.lawfile import fitted_and_new, points_of, read_law
from areca.report.markup import absent, note, plot


@dataclass
class View:
    """One page in the making. `drawn` holds its figures by the name of their place, in order."""

    found: Gathered
    law: Law | None
    points: list[Point]  # what the law was fitted to
    new: list[Point]  # runs it has not seen
    new_name: str
    budgets: Budgets
    drawn: dict[str, Figure] = field(default_factory=dict)

    @staticmethod
    def of(found: Gathered) -> "View":
        """The view of what was gathered."""
        law = read_law(found.law)
        points, new = fitted_and_new(found.runs, law)
        new_name = "runs not fitted"
        if found.verify is not None:
            new, new_name = points_of([found.verify]), "verifying run"
        budgets = [p.budget_flops for p in points] + [v.budget_flops for v in (law.valleys if law else [])]
        budgets += [run.budget_flops for run in found.runs]
        return View(found, law, points, new, new_name, Budgets(budgets))

    def place(
        self, name: str, label: str, made: Figure | None, otherwise: str = "", words: str = "", height: int = 420
    ) -> str:
        """The place of a figure with its explanation; a sentence, or nothing, where there is no figure."""
        if made is None:
            return absent(otherwise) if otherwise else ""
        self.drawn[name] = made
        return plot(name, label, height) + (note(words) if words else "")
