"""Concrete runs to choose from: a decoder with whole batches of tokens, its exact FLOPs and its predicted loss."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from areca.laws import LawReport
from areca.laws.law import Law
from areca.model.config import ModelConfig
from areca.model.counts import count_params, exact_flops_per_token

FLAT = 1e-3  # candidates within 0.1% of the least predicted loss belong to the valley's floor
Batch = int | Callable[[ModelConfig], int]  # sequences a step, or a rule that gives them for a shape


@dataclass(frozen=True)
class Candidate:
    """One run: a decoder, whole batches of tokens, and its predicted loss in nats per token."""

    shape: dict[str, Any]  # the ModelConfig's fields
    n_params: int  # without embeddings
    n_params_total: int
    n_tokens: int
    steps: int
    flops_exact: int
    flops_6nd: int
    tokens_per_param: float
    predicted_loss: float

    def model(self) -> ModelConfig:
        return ModelConfig(**self.shape)

    def counted(self, law: Law | LawReport) -> int:
        """N as the law counts it."""
        return self.n_params_total if law.n_counts == "total" else self.n_params


def counted(law: Law | LawReport, shape: ModelConfig) -> int:
    """N of a shape as the law counts it."""
    counts = count_params(shape)
    return counts.total if law.n_counts == "total" else counts.non_embedding


@dataclass(frozen=True)
class Terms:
    """What all candidates share."""

    law: Law
    context: int
    unique_tokens: float | None = None

    def candidate(self, shape: ModelConfig, steps: int, tokens: int) -> Candidate:
        """The run of `tokens` in `steps`, whatever its batches are."""
        counts, n = count_params(shape), counted(self.law, shape)
        return Candidate(
            shape=asdict(shape.resolved()),
            n_params=counts.non_embedding,
            n_params_total=counts.total,
            n_tokens=tokens,
            steps=steps,
            flops_exact=exact_flops_per_token(shape, self.context) * tokens,
            flops_6nd=6 * counts.non_embedding * tokens,
            tokens_per_param=tokens / counts.non_embedding,
            predicted_loss=float(self.law.predict(float(n), float(tokens), self.unique_tokens)),
        )

    def spending(self, shape: ModelConfig, flops: float, batch: int) -> Candidate | None:
        """The run that spends as much of `flops` as whole steps of `batch` sequences can; None if not even one."""
        step_tokens = batch * self.context
        steps = int(flops // (exact_flops_per_token(shape, self.context) * step_tokens))
        return self.candidate(shape, steps, steps * step_tokens) if steps >= 1 else None

    def reaching(self, shape: ModelConfig, loss: float, batch: int) -> Candidate | None:
        """The shortest run of whole steps whose predicted loss is at most `loss`; None if the shape can't."""
        from scipy.optimize import brentq

        n = float(counted(self.law, shape))

        def above(log10_d: float) -> float:
            return float(self.law.predict(n, 10.0**log10_d, self.unique_tokens)) - loss

        most = 24.0
        if above(most) > 0:
            return None
        tokens = 10.0 ** float(brentq(above, 0.0, most, xtol=1e-12)) if above(0.0) > 0 else 1.0  # type: ignore[arg-type]
        steps = max(1, -int(-tokens // (batch * self.context)))
        return self.candidate(shape, steps, steps * batch * self.context)


def neighbours(law: Law, candidates: Sequence[Candidate], best: Candidate) -> dict[str, Candidate]:
    """The candidates nearest to half and to double the best size, where one lies within a quarter of it.

    Sizes are as the law counts them: in a small model embeddings may be most of N.
    """
    found = {}
    for name, factor in (("half", 0.5), ("double", 2.0)):
        wanted = best.counted(law) * factor
        near = min(candidates, key=lambda c: abs(c.counted(law) - wanted))
        if near is not best and abs(near.counted(law) / wanted - 1) <= 0.25:
            found[name] = near
    return found


def flat_range(candidates: Sequence[Candidate]) -> list[int]:
    """The smallest and largest N, without embeddings, within 0.1% of the least predicted loss, also between shapes.

    A valley is a parabola in ln N, so the root of the excess is taken as linear there.
    """
    ordered = sorted(candidates, key=lambda c: c.n_params)
    least = min(c.predicted_loss for c in ordered)
    excess = [c.predicted_loss / least - 1 for c in ordered]
    inside = [i for i, e in enumerate(excess) if e <= FLAT]

    def edge(last: int, beyond: int) -> int:
        n = ordered[last].n_params
        if not 0 <= beyond < len(ordered):
            return n
        share = (FLAT**0.5 - excess[last] ** 0.5) / (excess[beyond] ** 0.5 - excess[last] ** 0.5)
        return round(n * (ordered[beyond].n_params / n) ** share)

    return [edge(inside[0], inside[0] - 1), edge(inside[-1], inside[-1] + 1)]
