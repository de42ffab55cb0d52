"""The batch along training from the critical batch of the loss, B_crit(L) = B* / L^(1 / alpha) (Kaplan et al. 2020).

At B_crit a run takes twice the least updates and twice the least compute: the compromise between the two. B_crit grows
as the loss falls, so the batch starts small and doubles each time that B_crit has, in whole sequences that a mesh can
share. The loss along training is the law's own at as many tokens, and at most ln V.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.errors import ConfigError
from areca.laws import kaplan
from areca.laws.law import Law
from areca.plan.candidates import Candidate, Terms

KAPLAN = "kaplan"
POINTS = 600  # of the loss along training
FEW_STEPS = 500  # fewer updates than this are no training


@dataclass(frozen=True)
class CriticalBatch:
    """B_crit(L) in tokens."""

    b_star: float
    alpha: float
    source: str

    def at(self, loss: Any) -> Any:
        return kaplan.critical_batch(loss, self.b_star, self.alpha)


PUBLISHED = CriticalBatch(kaplan.B_STAR, kaplan.A_B, "Kaplan et al. 2020, equation 5.3")


def parse_critical_batch(words: str) -> CriticalBatch:
    """ "kaplan", or "B*,alpha" such as "2.1e8,0.21"; ConfigError for anything else."""
    if words == KAPLAN:
        return PUBLISHED
    try:
        b_star, alpha = (float(w) for w in words.split(","))
    except ValueError:
        b_star = alpha = float("nan")
    if not (0 < b_star < 1e30 and 0.01 <= alpha < 100):
        raise ConfigError(
            f"--b-crit is {words!r}; give kaplan, or B* in tokens and alpha of B_crit = B* / L^(1 / alpha), such as "
            "2.1e8,0.21."
        )
    return CriticalBatch(b_star, alpha, "B* and alpha as given")


def ramp(
    law: Law, critical: CriticalBatch, best: Candidate, context: int, data: int = 1, unique_tokens: float | None = None
) -> list[list[int]]:
    """[[from_token, sequences], ...] for `BatchConfig.ramp`; each batch is `data` times a power of two."""
    n, highest = float(best.counted(law)), math.log(best.model().vocab_size)
    tokens = np.geomspace(min(context, best.n_tokens), best.n_tokens, POINTS)
    loss = np.minimum(law.predict(n, tokens, unique_tokens), highest)
    allowed = np.maximum.accumulate(critical.at(loss)) / (context * data)  # in smallest batches
    level = np.floor(np.log2(np.maximum(allowed, 1.0))).astype(int)
    rows = [[0, data * 2 ** int(level[0])]]
    for k in range(int(level[0]) + 1, int(level[-1]) + 1):
        start = int(tokens[int(np.argmax(level >= k))])
        if start <= rows[-1][0]:
            rows[-1][1] = data * 2**k
        else:
            rows.append([start, data * 2**k])
    return rows


def steps_of(rows: list[list[int]], tokens: float, context: int) -> tuple[int, int]:
    """(steps, tokens) of the longest run of whole steps along a ramp that sees at most `tokens`."""
    steps = seen = 0
    for i, (start, sequences) in enumerate(rows):
        if seen < start:
            raise AssertionError("a row begins where the one before ends")
        each = sequences * context
        end = rows[i + 1][0] if i + 1 < len(rows) else tokens
        count = -int(-(end - seen) // each) if i + 1 < len(rows) else int((end - seen) // each)
        count = max(0, min(count, int((tokens - seen) // each)))
        steps, seen = steps + count, seen + count * each
        if i + 1 < len(rows) and seen < rows[i + 1][0]:
            break  # the tokens end within this row
    return steps, seen


def along(terms: Terms, rows: list[list[int]], run: Candidate) -> Candidate | None:
    """`run` with the batches of a ramp: no more tokens than it had, in whole steps; None if not even one."""
    steps, tokens = steps_of(rows, run.n_tokens, terms.context)
    return terms.candidate(run.model(), steps, tokens) if steps else None


def about(critical: CriticalBatch, law: Law, run: Candidate, rows: list[list[int]], context: int) -> list[str]:
    """What a user should know of a ramp."""
    final = rows[-1][1] * context
    end = float(critical.at(run.predicted_loss))
    said = [
        f"the batch follows B_crit(L) by {critical.source}: B* {critical.b_star:.3g} tokens, alpha {critical.alpha:g}, "
        f"{end:.3g} tokens at the end; with it a run takes twice the least updates and twice the least compute."
    ]
    lowest = kaplan.MEASURED.loss[0] if kaplan.MEASURED.loss else 0.0
    if critical is PUBLISHED and run.predicted_loss < lowest and not isinstance(law, kaplan.KaplanLaw):
        said.append(f"B_crit was not measured at losses below {lowest:g}, so the last of these batches are guesses.")
    if run.steps < FEW_STEPS:
        said.append(f"that leaves only {run.steps:,} steps; a batch under {final:,} tokens, with --batch, gives more.")
    return said


__all__ = ["KAPLAN", "PUBLISHED", "CriticalBatch", "about", "along", "parse_critical_batch", "ramp", "steps_of"]
