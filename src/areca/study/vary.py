"""Sweeps of one thing at a time, the experiments of Kaplan et al. 2020: data, shape, context, batch.

Each is a ladder directory like any other (`areca.study.ladder`), whose runs' labels say what varies:

    data      sizes x fractions of the text, each read for several numbers of passes (their sections 4.1 and 4.2)
    shape     depth against width, and heads, at equal N (their section 3.1)
    context   lengths at equal tokens a step and equal D (their appendix D.5)
    batch     batches, each at constant rates, up to about one loss (their section 5.1; McCandlish et al. 2018)

All points of a sweep share the seed of their number, so that they are compared on equal terms: the same text in the
same order as far as they read it, and of smaller fractions a part of that of larger ones.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from areca.config import EvalConfig, ModelConfig, RunConfig, ScheduleConfig
from areca.data.order import Order
from areca.data.store import TokenStore
from areca.errors import ConfigError
from areca.model.counts import count_params, exact_flops_per_token
from areca.study import recipe
from areca.study.equal_shapes import equal_shape, with_heads
from areca.study.ladder import Ladder, enough, plan_ladder, rate_factors
from areca.study.pool import Job

Vary = Literal["size", "data", "shape", "context", "batch"]
SWEEPS: tuple[Vary, ...] = ("data", "shape", "context", "batch")
# Which options are for which ladders; those not named are for all.
MEANT_FOR: dict[str, tuple[Vary, ...]] = {
    "budgets": ("size",),
    "sizes": ("size",),
    "widths": SWEEPS,
    "tokens": SWEEPS,
    "evaluations": SWEEPS,
    "fractions": ("data",),
    "depths": ("shape",),
    "heads": ("shape",),
    "contexts": ("context",),
    "context": ("size", "data", "shape", "batch"),
    "batches": ("batch",),
}
TOKENS_PER_PARAMETER = 20  # of a run whose tokens are not given
WARMUP = 0.05  # of a run at a constant rate


@dataclass(frozen=True)
class Settings:
    """What a sweep is made of. Empty, 0 or None: the sweep's own default."""

    widths: tuple[int, ...] = ()
    tokens: int = 0  # of a run: data at most, batch of the smallest batches
    context: int = recipe.CONTEXT
    evaluations: int | None = None  # of held-out loss along a run
    epochs: tuple[float, ...] = ()  # data: passes over a fraction, a run each; otherwise how often text may be read
    fractions: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    depths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12)
    heads: tuple[int, ...] = ()
    contexts: tuple[int, ...] = (16, 32, 64, 128, 256)
    batches: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128)
    threads: int = 1


DEFAULTS: dict[str, dict[str, Any]] = {
    "data": {"widths": (16, 32, 64), "evaluations": 16, "epochs": (1.0, 4.0, 16.0, 64.0)},
    "shape": {"widths": (48,), "evaluations": 0, "epochs": (1.0,)},
    "context": {"widths": (48,), "evaluations": 0, "epochs": (1.0,)},
    "batch": {"widths": (32,), "evaluations": 30, "epochs": (1.0,)},
}


@dataclass(frozen=True)
class Point:
    """A run but for its seed and rate factor."""

    name: str
    labels: dict[str, Any]
    config: RunConfig


def plan_family(
    vary: Vary,
    directory: Path | str,
    store: Path | str,
    options: Mapping[str, Any],
    *,
    seed: int,
    seeds: int,
    learning_rates: Sequence[float],
) -> Ladder:
    """A ladder over sizes or a sweep, from options of which those not given are None or empty.

    ConfigError for an option that means nothing to what varies, and what `plan_ladder` and `plan_sweep` raise.
    """
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in given:
        meant = MEANT_FOR.get(name)
        if meant and vary not in meant:
            raise ConfigError(
                f"--{name.replace('_', '-')} is for ladders that vary {' or '.join(meant)}, and this one varies "
                f"{vary}; leave it out."
            )
    if given.get("tokens", 1) < 1:
        raise ConfigError(f"--tokens is {given['tokens']}; give how many tokens a run takes, such as 1000000.")
    if vary != "size":
        return plan_sweep(
            vary, directory, store, Settings(**given), seed=seed, seeds=seeds, learning_rates=learning_rates
        )
    if len(epochs := given.pop("epochs", (1.0,))) > 1:
        raise ConfigError(f"--epochs is {list(epochs)}; several are for ladders that vary data, give one.")
    budgets = given.pop("budgets", ())
    return plan_ladder(
        directory, store, budgets, **given, epochs=epochs[0], seed=seed, seeds=seeds, learning_rates=learning_rates
    )


def plan_sweep(
    vary: Vary,
    directory: Path | str,
    store: Path | str,
    settings: Settings,
    *,
    seed: int = 0,
    seeds: int = 1,
    learning_rates: Sequence[float] = (1.0,),
) -> Ladder:
    """Lays out a sweep: every point with `seeds` seeds and with the recipe's rate times each of `learning_rates`.

    ConfigError for settings that can't be used, DataError when the store has too few tokens.
    """
    recipe.check_family_seed(seed)
    factors = rate_factors(learning_rates)
    s = replace(settings, **{k: v for k, v in DEFAULTS[vary].items() if getattr(settings, k) in ((), None)})
    _check(vary, s)
    opened, directory = TokenStore.open(store), Path(directory)
    made = list(POINTS[vary](s, opened))
    total = len(made) * len(factors)
    if total > 1000 or not 1 <= seeds <= min(recipe.SEEDS, 1000 // total):
        raise ConfigError(f"{total} runs for each of {seeds} seeds; give seeds of at least 1 and 1000 runs at most.")
    most, jobs = 0.0, []
    for point in made:
        allowed = math.inf if vary == "data" else s.epochs[0]
        most = max(most, enough(opened, point.config, point.name, allowed, instead="fewer --tokens"))
        for number in range(seeds):
            own = seed * recipe.SEEDS + number
            for factor in factors:
                c = point.config
                optimizer = replace(c.optimizer, learning_rate=c.optimizer.learning_rate * factor)
                config = replace(c, optimizer=optimizer, seed=own, data=replace(c.data, seed=own))
                labels: dict[str, Any] = {"name": point.name, "vary": vary, **point.labels}
                if seeds > 1:
                    labels |= {"name": f"{labels['name']}-s{number}", "seed": number}
                if factors != (1.0,):
                    labels |= {"name": f"{labels['name']}-lr{factor:g}", "learning_rate_factor": factor}
                cost = exact_flops_per_token(c.model, c.data.context) * c.tokens
                jobs.append(Job(labels["name"], config, directory / "runs" / labels["name"], labels, cost))
    told = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(s).items()}
    told = {k: v for k, v in told.items() if vary in MEANT_FOR.get(k, (vary,))}
    record = {"vary": vary, **told, "seed": seed, "seeds": seeds, "learning_rates": list(factors)}
    return Ladder(directory, (), jobs, most, record)


def _check(vary: Vary, s: Settings) -> None:
    """ConfigError for the first setting that no run can follow."""
    for name in ("widths", "depths", "heads", "contexts", "batches", "fractions", "epochs"):
        values = getattr(s, name)
        if vary not in MEANT_FOR.get(name, (vary,)):
            continue
        if (not values and name != "heads") or not all(v > 0 for v in values) or len(set(values)) < len(values):
            raise ConfigError(f"--{name} is {list(values)}; give different numbers above 0.")
    if s.context < 1 or (s.evaluations or 0) < 0:
        raise ConfigError(f"context is {s.context} and evaluations {s.evaluations}; give at least 1, and 0 or more.")
    if vary == "data" and not all(f <= 1 for f in s.fractions):
        raise ConfigError(f"--fractions is {list(s.fractions)}; they are parts of the text, at most 1.")
    if vary != "data" and len(s.epochs) > 1:
        raise ConfigError(f"--epochs is {list(s.epochs)}; several are for ladders that vary data, give one.")
    if any(w % 2 for w in s.widths):
        raise ConfigError(f"--widths is {list(s.widths)}; give even widths, such as 16 32 64.")


def _data(s: Settings, store: TokenStore) -> Iterator[Point]:
    """For each size and fraction a run for each number of passes; those that `tokens` makes equal are one."""
    unique = {
        f: sum(Order(store, s.context, fraction=f).windows_per_epoch.values()) * s.context for f in sorted(s.fractions)
    }
    tokens = s.tokens or max(unique.values())
    batch = max(2, round(recipe.batch_tokens(tokens) / s.context))
    for width in sorted(s.widths):
        model = recipe.shape(store.vocab_size, width)
        for fraction, size in unique.items():
            lengths = {max(1, round(min(tokens, e * size) / (batch * s.context))) for e in s.epochs}
            for steps in sorted(lengths):
                config = _run(s, store, model, steps, batch)
                config = replace(config, data=replace(config.data, fraction=fraction))
                name = f"n{count_params(model).non_embedding}-f{fraction:g}-d{config.tokens}"
                yield Point(name, {"fraction": fraction, "passes": round(config.tokens / size, 4)}, config)


def _shape(s: Settings, store: TokenStore) -> Iterator[Point]:
    """For each size its depths, with heads near 16 wide, and then its own depth with other numbers of heads."""
    for width in sorted(s.widths):
        like = recipe.shape(store.vocab_size, width)
        wanted = count_params(like).non_embedding
        tokens = s.tokens or TOKENS_PER_PARAMETER * wanted
        batch = max(2, round(recipe.batch_tokens(tokens) / s.context))
        shapes = {f"l{n}": equal_shape(like, n) for n in sorted(s.depths)}
        shapes |= {f"h{h}": with_heads(like, h) for h in sorted(s.heads)}
        for name, model in shapes.items():
            config = _run(s, store, model, max(1, round(tokens / (batch * s.context))), batch)
            labels = {"n_layers": model.n_layers, "d_model": model.d_model, "n_heads": model.n_heads}
            labels |= {"aspect_ratio": model.d_model / model.n_layers, "target_n_params": wanted}
            yield Point(f"n{wanted}-{name}", labels, config)


def _context(s: Settings, store: TokenStore) -> Iterator[Point]:
    """Contexts at equal tokens a step, all evaluated on all of the held-out text."""
    together = math.lcm(*s.contexts)
    for width in sorted(s.widths):
        model = recipe.shape(store.vocab_size, width)
        tokens = s.tokens or TOKENS_PER_PARAMETER * count_params(model).non_embedding
        step = max(1, round(recipe.batch_tokens(tokens) / together)) * together
        for context in sorted(s.contexts):
            config = _run(replace(s, context=context), store, model, max(1, round(tokens / step)), step // context)
            config = replace(config, evaluation=replace(
                config.evaluation, max_tokens=0, batch=max(1, 4096 // context)))  # fmt: skip
            yield Point(f"n{count_params(model).non_embedding}-t{context}", {"context": context}, config)


def _batch(s: Settings, store: TokenStore) -> Iterator[Point]:
    """Batches at constant rates that rise with the square root of the batch, for tokens (1 + B / B_0).

    B_0 is the geometric mean of the batches, so about where large ones begin to need more tokens, and all reach about
    the same loss. The rate is the recipe's at B_0. The noise scale is measured in each run that has parts to do so.
    """
    from areca.train.noise import parts_for

    middle = math.exp(sum(map(math.log, s.batches)) / len(s.batches))
    for width in sorted(s.widths):
        model = recipe.shape(store.vocab_size, width)
        tokens = s.tokens or TOKENS_PER_PARAMETER * count_params(model).non_embedding
        rate = recipe.learning_rate(max(1, round(2 * tokens / (middle * s.context))))
        for batch in sorted(s.batches):
            steps = max(1, round(tokens * (1 + batch / middle) / (batch * s.context)))
            c = _run(s, store, model, steps, batch)
            c = replace(
                c,
                optimizer=replace(c.optimizer, learning_rate=round(rate * math.sqrt(batch / middle), 5)),
                schedule=ScheduleConfig("constant", warmup_tokens=round(WARMUP * c.tokens)),
            )
            if batch > 1:
                with contextlib.suppress(ConfigError):  # such as 7 sequences: trained without
                    c = replace(c, noise_parts=parts_for(c, max(2, min(8, batch // 4))))
            name = f"n{count_params(model).non_embedding}-b{batch * s.context}"
            yield Point(name, {"batch_tokens": batch * s.context}, c)


POINTS: dict[str, Callable[[Settings, TokenStore], Iterator[Point]]] = {
    "data": _data,
    "shape": _shape,
    "context": _context,
    "batch": _batch,
}


def _run(s: Settings, store: TokenStore, model: ModelConfig, steps: int, batch: int) -> RunConfig:
    """The recipe's run of so many steps, with the sweep's evaluations along it."""
    config = recipe.run_of_steps(
        model, str(store.path), steps, batch=batch, seed=0, threads=s.threads, context=s.context
    )
    if not s.evaluations:
        return config
    every = max(1, config.tokens // s.evaluations)
    # About a million held-out tokens along a run, however often; a power of two each time.
    read = min(131_072, 2 ** (20 - (s.evaluations - 1).bit_length()))
    return replace(config, evaluation=EvalConfig(every, max_tokens=read, batch=64))
