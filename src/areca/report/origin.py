"""Which law a plan or a design is of, and whether that is the law of the page it stands on.

law.json bears a fingerprint of its fitted values and a plan repeats that of its law; a published law goes by its name.
What is of another law is not refused, since stale plans and published laws are worth seeing beside one's own: it is
shown apart, under its own law's name and with its own prediction, and is a point of no figure of this page's law.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.report.law import Law
from areca.report.values import an_object, positive

FITTED = "fit"  # the name of every law that was fitted; others are published
SAME = 1e-6  # relative: a loss that this law gives, written and read again
DIGITS = 8  # of a fingerprint, that a person compares


@dataclass(frozen=True)
class Origin:
    """Which law a plan or a design is of. `here`: whether it is the page's; None where the page has no law."""

    name: str  # in words; "" where the file does not say
    here: bool | None
    said: str  # a sentence, where it is not plainly of this law

    @property
    def apart(self) -> bool:
        """Whether it must stay out of the figures of the page's law."""
        return self.here is False

    def to_dict(self) -> dict[str, Any]:
        """As report.json has it."""
        return {"name": self.name or None, "of_this_law": self.here, "said": self.said or None}


def origin_of(what: str, value: dict[str, Any] | None, law: Law | None) -> Origin | None:
    """The origin of a plan or a design (`what` it is called in a sentence); None where there is none."""
    if value is None:
        return None
    of = an_object(value, "law")
    name, mark = _name(of), _text(of, "fingerprint")
    unsaid = f"The {what} does not say which law it is of"
    if law is None:
        return Origin(name, None, "" if name else f"{unsaid}.")
    published = _text(of, "name") not in ("", FITTED)
    if published or (mark and law.fingerprint):
        if mark and mark == law.fingerprint:
            return Origin(name, True, "")
        here = f" ({law.fingerprint[:DIGITS]})" if law.fingerprint else ""
        return Origin(
            name, False, f"The {what} is of another law than this page's{here}, {name}: it is shown apart, by that law."
        )
    if mark:
        unsaid = f"law.json bears no fingerprint (fit it again), so it is not certain that the {what} is of it"
    if _predicts(law, value, of):
        return Origin(name, True, f"{unsaid}; its predicted loss is this law's at its N and D, so it is shown as such.")
    return Origin(
        name, False, f"{unsaid}, and its predicted loss is not this law's at its N and D: it is shown apart; make it "
        "again from this law.",
    )  # fmt: skip


def loss_here(law: Law | None, value: dict[str, Any]) -> float | None:
    """The loss that the page's law gives the run of a plan or the target of a design, N counted the law's way."""
    n, d = law.size_of(value) if law else None, positive(value, "n_tokens")
    if law is None or not law.complete or not n or not d:
        return None
    return float(law.predict(np.array([n]), np.array([d]))[0])


def _predicts(law: Law, value: dict[str, Any], of: dict[str, Any]) -> bool:
    """Whether the law gives the loss that a file predicts, N counted as the file says."""
    n = positive(value, "n_params_total" if of.get("n_counts") == "total" else "n_params")
    d, loss = positive(value, "n_tokens"), positive(value, "predicted_loss")
    if not (law.complete and n and d and loss):
        return False
    return bool(abs(law.predict(np.array([n]), np.array([d]))[0] / loss - 1) < SAME)


def _name(of: dict[str, Any]) -> str:
    """law.json, huber fit to 24 runs (1a2b3c4d); chinchilla, Hoffmann et al. 2022."""
    words = ", ".join(filter(None, (_text(of, "given") or _text(of, "name"), _text(of, "source"))))
    mark = _text(of, "fingerprint")[:DIGITS]
    return f"{words} ({mark})" if words and mark else words or mark


def _text(source: dict[str, Any], key: str) -> str:
    value = source.get(key)
    return value if isinstance(value, str) else ""
