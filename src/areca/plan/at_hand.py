"""A law and the runs it was fitted on, as far as they are at hand: what planning by loss and by design start from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from areca.config import BatchConfig
from areca.errors import ConfigError, check_at_least_one
from areca.laws import LawReport
from areca.laws.published import published
from areca.model.config import ModelConfig
from areca.plan.shapes import by_size
from areca.plan.template import Rule, Template, names_published, read_law, shapes_for

RULE_WIDTHS = (*range(16, 128, 8), *range(128, 1025, 16))


class Family(Rule, Protocol):
    """A rule that also gives the decoder of a width, such as `areca.study.recipe`."""

    def shape(self, vocab_size: int, width: int) -> ModelConfig: ...


@dataclass(frozen=True)
class AtHand:
    """A law, the run whose settings others take (None where there are only rows), and what a run is counted with."""

    law: LawReport
    template: Template | None
    vocab_size: int
    context: int  # T in tokens
    batch: Callable[[ModelConfig, float], int]  # sequences a step of a shape that spends so many FLOPs
    notes: list[str]
    given: str = ""  # how the user named the law

    def shapes(self) -> list[ModelConfig]:
        """All that a plan chooses from."""
        return shapes_for(self.template, self.vocab_size)

    def rungs(self, rule: Family | None) -> list[ModelConfig]:
        """Shapes for further runs of the same ladder: by its own rule where it was made by one, else `shapes`."""
        if self.template is None or rule is None or not self.template.made_by(rule):
            return self.shapes()
        return by_size([*self.template.shapes, *(rule.shape(self.vocab_size, width) for width in RULE_WIDTHS)])


def at_hand(
    law: Path | str,
    *,
    vocab_size: int | None = None,
    context: int | None = None,
    batch: int | None = None,
    rule: Rule | None = None,
    purpose: str = "this",
) -> AtHand:
    """A law.json, or runs to fit first; what is left None is as in the runs behind the law.

    `purpose` is what needs the law's interval, in the words of the message. ConfigError for a published law, which has
    none, and where the runs are not at hand and the vocabulary or the context, which count FLOPs, are not given.
    """
    for name, value in (("vocab-size", vocab_size), ("context", context), ("batch", batch)):
        check_at_least_one(f"--{name}", value)
    if names_published(law):
        raise ConfigError(
            f"{published(str(law)).name} is a published law, which comes without the runs that say how sure it is, and "
            f"{purpose} needs them; fit one to runs (`areca fit runs.csv --out law.json`) and name that file."
        )
    report, template, notes = read_law(law)
    if template:
        vocab_size = vocab_size or template.config.model.vocab_size
        context = context or template.config.data.context
    if vocab_size is None or context is None:
        raise ConfigError(
            f"the runs behind {Path(law)} are not at hand, so the plan needs --vocab-size and --context to count FLOPs."
        )
    sequences = batch or (template.config.batch if template else BatchConfig()).ramp[-1][1]
    if not batch and not template:
        notes.append(f"no batch is known, so it is Areca's default of {sequences} sequences; give --batch.")

    def of_a_run(shape: ModelConfig, flops: float) -> int:
        if not batch and template and rule is not None and template.made_by(rule):
            return rule.batch_sequences(shape, flops, context)
        return sequences

    return AtHand(report, template, vocab_size, context, of_a_run, notes, str(law))
