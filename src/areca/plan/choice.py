"""Which run of a budget to take when it isn't the one of least loss: over-trained, stopped early, or cheap to serve.

- over-train: tokens a parameter times a factor of the optimum's, at the same compute; smaller, and a little worse.
- stop above convergence: the size whose loss at the end is a share above what it would reach in ever more updates
  (Kaplan et al. 2020, appendix B: compute is best spent at a_N / a_S, about 10%).
- inference: the cheapest run and its service together at one loss, C = training + D_inference x a forward pass
  (Sardana et al. 2023: 6 N D + 2 N D_inference), in exact FLOPs.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from areca.errors import ConfigError, check_positive
from areca.laws.kaplan import KaplanLaw, converged_loss
from areca.laws.law import Law, least_loss
from areca.model.config import ModelConfig
from areca.model.counts import exact_flops_per_token
from areca.plan.candidates import Candidate, Terms

EXAMPLES = {"over_train": "4", "stop_above_convergence": "0.1", "inference_tokens": "2e12", "target_loss": "2.5"}


@dataclass(frozen=True)
class Choice:
    """At most one of these; none is the run of least loss. `target_loss` goes with `inference_tokens`."""

    over_train: float | None = None
    stop_above_convergence: float | None = None
    inference_tokens: float | None = None
    target_loss: float | None = None

    def check(self, law: Law) -> None:
        """ConfigError for a choice that can't be."""
        rules = ("over_train", "stop_above_convergence", "inference_tokens")
        given = [n for n in rules if getattr(self, n) is not None]
        for name in (*given, "target_loss"):
            check_positive(_option(name), getattr(self, name), EXAMPLES[name])
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(map(_option, given))} are two ways to choose a run; give one of them.")
        if self.target_loss is not None and self.inference_tokens is None:
            raise ConfigError("--target-loss is the loss to serve at; give --inference-tokens with it.")
        if self.stop_above_convergence is not None and not isinstance(law, KaplanLaw):
            raise ConfigError(
                f"--stop-above-convergence is a rule of Kaplan's learning curves and the law is {law.name}; use --law "
                "kaplan."
            )


def over_train(candidates: Sequence[Candidate], best: Candidate, factor: float) -> tuple[Candidate, dict[str, Any]]:
    """The candidate whose tokens a parameter are nearest to `factor` times the optimum's."""
    wanted = factor * best.tokens_per_param
    ratios = [c.tokens_per_param for c in candidates]
    if not min(ratios) / 1.5 <= wanted <= max(ratios) * 1.5:
        raise ConfigError(
            f"--over-train {factor:g} asks for {wanted:.3g} tokens a parameter, and the shapes of this budget have "
            f"{min(ratios):.3g} to {max(ratios):.3g}; give a factor nearer to 1."
        )
    chosen = min(candidates, key=lambda c: abs(math.log(c.tokens_per_param / wanted)))
    return chosen, _against("over-train", chosen, best) | {"factor": chosen.tokens_per_param / best.tokens_per_param}


def stop_above(candidates: Sequence[Candidate], best: Candidate, share: float) -> tuple[Candidate, dict[str, Any]]:
    """The candidate whose predicted loss is nearest to `share` above its converged one."""

    def excess(c: Candidate) -> float:
        return c.predicted_loss / float(converged_loss(c.n_params)) - 1

    chosen = min(candidates, key=lambda c: abs(excess(c) - share))
    found = [excess(c) for c in candidates]
    if not min(found) * 0.9 <= share <= max(found) * 1.1:
        raise ConfigError(
            f"--stop-above-convergence is {share:g}, and the runs of this budget end {min(found):.2g} to "
            f"{max(found):.2g} above their converged loss; give a share between, such as 0.1."
        )
    return chosen, _against("stop above convergence", chosen, best) | {"excess": excess(chosen)}


def at_loss(terms: Terms, shapes: Sequence[ModelConfig], batches: Sequence[int], loss: float) -> list[Candidate]:
    """Of each shape that can, the shortest run that reaches `loss`. ConfigError when none does."""
    floor = least_loss(terms.law, terms.unique_tokens)
    if loss <= floor:
        raise ConfigError(
            f"a loss of {loss:g} is below the law's floor of {floor:.4g}, which no size and no number of tokens reach; "
            "give a higher --target-loss."
        )
    found = [terms.reaching(s, loss, b) for s, b in zip(shapes, batches, strict=True)]
    runs = [c for c in found if c is not None]
    if not runs:
        raise ConfigError(
            f"no shape of the family reaches a loss of {loss:g} by this law; give a higher --target-loss."
        )
    return runs


def cheapest_to_serve(
    runs: Sequence[Candidate], inference_tokens: float, context: int, loss: float
) -> tuple[Candidate, dict[str, Any]]:
    """Of runs that reach one loss, that of least training plus inference, beside that of least training."""

    def serving(c: Candidate) -> float:
        return exact_flops_per_token(c.model(), context) / 3 * inference_tokens  # a forward pass a token

    def total(c: Candidate) -> float:
        return c.flops_exact + serving(c)

    chosen, trained = min(runs, key=total), min(runs, key=lambda c: c.flops_exact)
    return chosen, {
        "rule": "inference",
        "loss": loss,
        "inference_tokens": inference_tokens,
        "training_flops": chosen.flops_exact,
        "inference_flops": serving(chosen),
        "total_flops": total(chosen),
        "optimum": asdict(trained),
        "optimum_total_flops": total(trained),
        "saved": 1 - total(chosen) / total(trained),
    }


def _against(rule: str, chosen: Candidate, best: Candidate) -> dict[str, Any]:
    penalty = chosen.predicted_loss / best.predicted_loss - 1
    return {"rule": rule, "optimum": asdict(best), "loss_penalty": penalty}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
