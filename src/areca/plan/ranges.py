"""How far a plan leaves what its law was measured on, as a factor and in orders of magnitude."""

import math

from areca.counted import says_n_count
from areca.laws.law import Fitted, Law, Span
from areca.laws.repeated import FittedDataConstrained
from areca.plan.candidates import Candidate

REPEATS_FREE, REPEATS_END = 4, 16  # epochs: nearly as good as new, and worth little more (Muennighoff et al. 2023)
BUDGET = {
    "exact": "the budget", "6nd": "the budget as 6 N D", "table": "the budget as the rows count FLOPs",
}  # fmt: skip


def outside(law: Law, best: Candidate, flops: float, context: int) -> tuple[dict[str, float], list[str]]:
    """({"n_params": factor, ...}, warnings): 1 inside, over 1 times the largest, under 1 of the smallest.

    N and C (`flops`) are as the law counts them. Context and loss are there where the law says what it was measured on.
    """
    r = law.ranges
    counted = "N with embeddings" if law.n_counts == "total" else "N"
    budget = BUDGET[law.flops_counts]
    if law.flops_counts != "exact" and law.n_counts == "total":
        budget += ", N with embeddings,"
    rows: list[tuple[str, str, float, Span | None]] = [
        ("n_params", counted, best.counted(law), r.n_params),
        ("n_tokens", "D", best.n_tokens, r.n_tokens),
        ("flops", budget, flops, r.flops),
        ("context", "the context", context, r.context),
    ]
    factors, warnings = {}, []
    verb = "fitted" if law.name == "fit" else "measured"
    for name, words, value, span in rows:
        if span is None:
            continue
        low, high = span
        factor = value / high if value > high else value / low if value < low else 1.0
        factors[name] = factor
        if factor == 1.0:
            continue
        times = max(factor, 1 / factor)
        side = f"{times:{'.3g' if times > 1.005 else '.4g'}} times "
        side += "the largest" if factor > 1 else "below the smallest"
        orders = f"{abs(math.log10(factor)):.2g} orders of magnitude outside"
        between = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        warnings.append(f"{words} = {value:.3g} is {side} the law was {verb} on ({between}), {orders}.")
    if warnings and not law.no_interval and (doubt := _form_doubt(law, factors, flops)):
        warnings.append(doubt)
    if r.loss is not None:
        low, high = r.loss
        factors["loss"] = best.predicted_loss / low if best.predicted_loss < low else 1.0
        if best.predicted_loss < low:
            share = 1 - factors["loss"]
            warnings.append(
                f"the predicted loss of {best.predicted_loss:.3g} is {share:.1%} below the lowest the law was measured "
                f"at ({low:g}): the loss and B_crit are guesses there."
            )
    return factors, warnings


def _form_doubt(law: Law, factors: dict[str, float], flops: float) -> str:
    """What the interval of a run outside the rows lacks of the doubt about the law's form; "" where nothing."""
    if not any(factors.get(name, 1.0) != 1.0 for name in ("n_params", "n_tokens", "flops")):
        return ""
    if isinstance(law, Fitted):
        return law.report.form_doubt(flops)
    return "the interval trusts the law's form: it has the doubt about its constants alone."


def assumed_size(law: Law) -> list[str]:
    """What was asked at the fit, and is assumed here, of the N of a law's rows: whether it counts embeddings."""
    column, notes = "", ()
    if isinstance(law, Fitted):
        column, notes = law.report.observations.columns.get("n_params", ""), law.report.notes
    elif isinstance(law, FittedDataConstrained):
        column, notes = law.n_column, law.notes
    asked = [note for note in notes if "does N count embeddings" in note or note.startswith("N counts embeddings in")]
    if says_n_count(column):
        return asked
    return [
        *asked,
        f"the rows' N is {column!r}, which does not say whether it counts embeddings, and is taken to be without them; "
        "if it has them, call the column n_params_total and fit again.",
    ]


def repeats(law: Law, n_tokens: float, unique_tokens: float) -> list[str]:
    """What reading `unique_tokens` over and over means for a law that counts every token as new."""
    epochs = n_tokens / unique_tokens
    if epochs <= REPEATS_FREE or law.knows_repeats:
        return []
    beyond = f"{epochs / REPEATS_FREE:.3g} times the {REPEATS_FREE} epochs up to which they are nearly worth new ones"
    end = f", and past about {REPEATS_END} more of them hardly help" if epochs > REPEATS_END else ""
    return [
        f"the {unique_tokens:.3g} unique tokens are read {epochs:.3g} times, {beyond} (Muennighoff et al. 2023){end}, "
        "but this law takes every token for new, so its loss is too low; use --law data-constrained."
    ]
