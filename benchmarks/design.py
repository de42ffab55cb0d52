"""Do the proposed runs narrow the interval? Simulated ladders of known laws, extended twice and truly fitted again.

    python benchmarks/design.py --replicates 40
    python benchmarks/design.py target --replicates 200

For each replicate a law is drawn, a ladder of it with noise, and a target beyond it. Then the ladder gets (a) the runs
that `design_runs` proposes for a share of what the next rung costs, (b) as many runs as the rung for all of that, (c)
the plain next rung, (d) the last rung once more, which costs a third of the next; each is fitted and bootstrapped anew,
and the 90% interval at the target compared.

    shrinkage per FLOP = (width before - width after) / exact FLOPs of the runs added,    medians over replicates

With `target` it plans runs for a loss with 90% probability and counts how often such a run reaches it.
"""

import argparse
import time
from dataclasses import dataclass, replace

import numpy as np

from areca.errors import FitError
from areca.laws import LawReport, Observations, bootstrap, fit_average, fit_laws, fit_parametric
from areca.model.counts import count_params, exact_flops_per_token
from areca.plan import family
from areca.plan.at_hand import AtHand
from areca.plan.experiments import Added, Design, Run, design_runs
from areca.plan.target import plan_target

VOCAB, CONTEXT, BATCH = 1024, 128, 8
SHAPES = family(VOCAB, smallest=3e3, largest=1e9)
N = np.array([count_params(s).non_embedding for s in SHAPES], dtype=float)
PER_TOKEN = np.array([exact_flops_per_token(s, CONTEXT) for s in SHAPES], dtype=float)


@dataclass(frozen=True)
class Setting:
    """A ladder of `budgets` from 1e12 FLOPs in steps of 3, five sizes each, and a target at `beyond` x its largest."""

    budgets: int
    beyond: float
    share: float  # of the next rung's FLOPs that (a) may spend
    coupling: float = 1.0  # of the law's terms; another than 1 is fitted as an average over couplings
    noise: float = 0.005

    def __str__(self) -> str:
        form = "" if self.coupling == 1.0 else f", coupling {self.coupling:g}, averaged"
        return f"{self.budgets} budgets, target at {self.beyond:g} x, allowance {self.share:.2f} of the rung{form}"


SETTINGS = (
    Setting(4, 10, 1 / 3),
    Setting(4, 100, 1 / 3),
    Setting(5, 10, 1 / 3),
    Setting(5, 100, 1 / 3),
    Setting(4, 100, 0.1),
    Setting(4, 100, 2 / 3),
    Setting(4, 100, 1 / 3, coupling=1.5),
)


@dataclass(frozen=True)
class Truth:
    """L = E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q)."""

    A: float
    B: float
    E: float
    alpha: float
    beta: float
    q: float = 1.0

    @staticmethod
    def draw(generator: np.random.Generator, q: float) -> "Truth":
        """Terms of one to two nats at N 1e5, D 2e6."""
        e, alpha, beta = generator.uniform([1.5, 0.3, 0.3], [3, 0.5, 0.5])
        at_n, at_d = generator.uniform(0.8, 2, 2)
        return Truth(at_n * 1e5**alpha, at_d * 2e6**beta, e, alpha, beta, q)

    def loss(self, n: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Nats a token."""
        return self.E + ((self.A * n**-self.alpha) ** self.q + (self.B * d**-self.beta) ** self.q) ** (1 / self.q)


def ladder(truth: Truth, setting: Setting, generator: np.random.Generator) -> Observations:
    """Five shapes from a quarter to four times the best of each budget."""
    n, d, c = [], [], []
    for k in range(setting.budgets):
        budget = 1e12 * 3.0**k
        best = N[truth.loss(N, budget / PER_TOKEN).argmin()]
        for size in best * np.geomspace(0.25, 4, 5) * np.exp(generator.normal(0, 0.2, 5)):
            i = np.abs(np.log(N / size)).argmin()
            n.append(N[i]), d.append(budget / PER_TOKEN[i]), c.append(budget)
    n, d, c = np.array(n), np.array(d), np.array(c)
    return Observations(n, d, c, truth.loss(n, d) * np.exp(setting.noise * generator.standard_normal(len(n))), budget=c)


def law_of(rows: Observations, setting: Setting, samples: int, seed: int) -> LawReport:
    """The fit with its bootstrap alone; an average over couplings where the truth has one."""
    fit = fit_parametric(rows)
    drawn = bootstrap(rows, fit, samples=samples, seed=seed)
    average = None
    if setting.coupling != 1.0:
        options = {"objective": "huber", "delta": 1e-3, "samples": samples, "seed": seed, "known": (fit, drawn)}
        average, _ = fit_average(rows, couplings=(1.0, 1.5, 2.0), **options)
    return LawReport(fit, drawn, {}, {}, None, None, None, None, rows, average=average)


def replicate(
    setting: Setting,
    seed: int,
    samples: int = 300,
    extensions: tuple[str, ...] = ("proposed", "equal", "rung", "again"),
) -> dict[str, float] | None:
    """Widths (relative, of the whole 90% interval) and FLOPs; None where a fit refused the rows."""
    generator = np.random.default_rng([seed, setting.budgets, round(10 * setting.coupling)])
    truth = Truth.draw(generator, setting.coupling)
    rows = ladder(truth, setting, generator)
    target_flops = setting.beyond * float(rows.flops.max())
    rung_flops = 5 * 3.0 * float(rows.flops.max())
    try:
        law = law_of(rows, setting, samples, seed)
        have = AtHand(law, None, VOCAB, CONTEXT, lambda shape, flops: BATCH, [])
        design = design_runs(have, allowance=setting.share * rung_flops, target_flops=target_flops)
        parts = {"proposed": design.proposed, "equal": design.at_the_rungs_cost, "rung": design.next_rung}
        parts["again"] = last_rung(design, rows)
        found: dict[str, float] = {"before": 2 * design.half_width_relative}
        for name in extensions:
            added = parts[name]
            assert added is not None
            more = extended(rows, added.runs, truth, setting, generator)
            after = law_of(more, setting, samples, seed + 1)
            low, high = after.predictor.interval(design.n_params, design.n_tokens, 0.9)
            found |= {name: (high - low) / float(after.predict(design.n_params, design.n_tokens))}
            found |= {f"{name}_expected": 2 * added.half_width_relative, f"{name}_flops": added.flops}
            found |= {f"{name}_runs": len(added.runs)}
    except FitError:
        return None
    return found


def last_rung(design: Design, rows: Observations) -> Added:
    """The ladder's last budget with other seeds. (Nothing is expected of it; `Added` only carries the runs.)"""
    like = design.proposed.runs[0]
    last = [
        replace(like, n_params=int(rows.n_params[i]), n_tokens=int(rows.n_tokens[i]), flops_exact=int(rows.flops[i]))
        for i in rows.budgets()[-1][1]
    ]
    return Added(last, float(sum(r.flops_exact for r in last)), float("nan"), float("nan"))


def extended(
    rows: Observations, runs: list[Run], truth: Truth, setting: Setting, generator: np.random.Generator
) -> Observations:
    """The ladder and what these runs would say."""
    n, d, c = (np.array([getattr(r, k) for r in runs], float) for k in ("n_params", "n_tokens", "flops_exact"))
    loss = truth.loss(n, d) * np.exp(setting.noise * generator.standard_normal(len(n)))
    old = (rows.n_params, rows.n_tokens, rows.flops, rows.loss)
    both = [np.append(a, b) for a, b in zip(old, (n, d, c, loss), strict=True)]
    return Observations(*both)


def shrinkage(found: list[dict[str, float]], name: str) -> np.ndarray:
    """Per FLOP of each replicate."""
    return np.array([(f["before"] - f[name]) / f[f"{name}_flops"] for f in found])


def ratio(found: list[dict[str, float]], name: str, other: str = "rung") -> float:
    """Median shrinkage per FLOP over another's."""
    return float(np.median(shrinkage(found, name)) / np.median(shrinkage(found, other)))


def targets(replicates: int) -> None:
    """How often runs planned at p = 0.9 and 0.5 reach their target, by the whole of `fit_laws`."""
    print("| ladder | target's loss: that of the best run at | planned at 90% reach it | at 50% | certainty costs |")
    print("|---|---|---|---|---|")
    for budgets, beyond in ((4, 3), (4, 10), (5, 10)):
        setting, reached, costs = Setting(budgets, beyond, 1.0), [], []
        for seed in range(replicates):
            generator = np.random.default_rng([seed, budgets, 77])
            truth = Truth.draw(generator, 1.0)
            rows = ladder(truth, setting, generator)
            target = float(truth.loss(N, beyond * rows.flops.max() / PER_TOKEN).min())
            try:
                law = fit_laws(rows, samples=300, seed=seed)
                plan = plan_target(law, target, SHAPES, context=CONTEXT, batch=BATCH)
            except FitError:
                continue
            assert plan.median is not None
            pair = []
            for best in (plan.sure.plan.best, plan.median.plan.best):
                run = truth.loss(np.array(best.n_params, float), np.array(best.n_tokens, float))
                pair.append(run * np.exp(setting.noise * generator.standard_normal()) <= target)
            reached.append(pair), costs.append(plan.certainty_costs)
        sure, even = np.mean(reached, axis=0)
        print(
            f"| {budgets} budgets, {len(reached)} of {replicates} | {beyond} x the largest budget | {sure:.1%} | "
            f"{even:.1%} | {np.median(costs):.2f} x |",
            flush=True,
        )


def designs(replicates: int) -> None:
    """The table of the settings."""
    heads = ("setting", "replicates", "width before", "next rung", "last rung again", "proposed (expected)",
             "FLOPs of proposed / rung", "proposed at the rung's FLOPs", "per FLOP, proposed / next rung",
             "per FLOP, proposed / last rung again", "at the rung's FLOPs / next rung")  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    everything = []
    for setting in SETTINGS:
        found = [f for seed in range(replicates) if (f := replicate(setting, seed)) is not None]
        everything += found
        names = ("before", "rung", "again", "proposed", "proposed_expected", "equal")
        before, rung, again, proposed, expected, equal = (f"{np.median([f[k] for f in found]):.2%}" for k in names)
        spent = f"{np.median([f['proposed_flops'] / f['rung_flops'] for f in found]):.2f}"
        cells = (before, rung, again, f"{proposed} ({expected})", spent, equal, *ratios(found))
        print(f"| {setting} | {len(found)} | {' | '.join(cells)} |", flush=True)
    print(f"all {len(everything)}: {', '.join(ratios(everything))}")


def ratios(found: list[dict[str, float]]) -> tuple[str, str, str]:
    """Median shrinkage per FLOP: proposed over next rung, over the last rung again, and at the next rung's FLOPs."""
    pairs = (("proposed", "rung"), ("proposed", "again"), ("equal", "rung"))
    first, second, third = (f"{ratio(found, *pair):.2f}" for pair in pairs)
    return first, second, third


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("design", "target"), default="design")
    parser.add_argument("--replicates", type=int, default=40)
    options = parser.parse_args()
    start = time.time()
    (designs if options.what == "design" else targets)(options.replicates)
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
