"""The whole story on real text: store, ladder, law, plan, the planned run, samples, report.

    OUT/store/  OUT/ladder/  OUT/law.json  OUT/plan.json  OUT/verify/  OUT/samples.json  OUT/report.html, report.json
    OUT/quickstart.json   the settings and what each stage took, over all sessions (`areca.study.clock`)

Each stage reads what the ones before wrote and is skipped when its own output is there, so the same command goes on
after an interruption. Sizes follow from `minutes` by arithmetic alone: the same numbers on any machine, however fast.
"""

import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from areca.config import differences
from areca.errors import ConfigError, DataError
from areca.files import LOCK, leftovers, locked, read_json, write_json
from areca.runtime import available_cores
from areca.study import recipe
from areca.study.clock import StageClock
from areca.study.ladder import WIDTHS, Ladder, plan_ladder, run_ladder
from areca.study.pool import Job, run_jobs
from areca.study.progress import FamilyProgress

# A ladder's FLOPs for `minutes` are (minutes - OVERHEAD) x FLOPS_PER_MINUTE, what two cores of a 2023 server did with
# it (docs/log.md): a choice of size, never a measurement of this machine.
OVERHEAD_MINUTES = 1.5
FLOPS_PER_MINUTE = 4.6e12
RUNGS = (1.0, 2.5, 6.25)  # budgets, relative to the smallest
STRETCH = 4.2  # the planned run's budget over the largest rung
SIZES = 5
TRIED_MINUTES = 8.0  # below, runs are too short for the law's form (docs/log.md)
EPOCHS = 4.0  # repeated up to four times, tokens are nearly worth new ones (Muennighoff et al. 2023)
RECORD = "quickstart.json"
PROMPTS = ("", "The function returns", "Hi! How are you", "Parameters\n----------\n")


@dataclass(frozen=True)
class Settings:
    """What determines the numbers of a quickstart."""

    minutes: float = 10.0
    seed: int = 0
    sources: tuple[str, ...] = ("docs:0.25", "chitchat:0.75")
    vocab_size: int = 512
    context: int = recipe.CONTEXT
    verify_threads: int = 0  # 0: one for each core

    def budgets(self) -> tuple[float, ...]:
        """The ladder's budgets in exact FLOPs, rounded to two digits."""
        if not 2.0 <= self.minutes <= 10_000:
            raise ConfigError(f"minutes is {self.minutes:g}; a ladder worth fitting takes from 2 to 10000.")
        recipe.check_family_seed(self.seed)
        total = (self.minutes - OVERHEAD_MINUTES) * FLOPS_PER_MINUTE
        smallest = total / (SIZES * sum(RUNGS) + STRETCH * RUNGS[-1])
        return tuple(float(f"{smallest * r:.1e}") for r in RUNGS)


def quickstart(
    out: Path | str, settings: Settings, say: Callable[[str], None], *, store: Path | None = None
) -> dict[str, Any]:
    """Runs what is not there yet and returns the content of report.json.

    `store` is a token store of the same sources to start from, so that it is not built again. `say` is called with
    lines of progress. ConfigError if `out` was made with other settings, BusyError if another process works there;
    KeyboardInterrupt and Interrupted leave what is finished, and runs in progress saved.
    """
    out = Path(out)
    settings = replace(settings, verify_threads=settings.verify_threads or available_cores())
    settings.budgets()
    _check_place(out)
    with locked(out):
        return _stages(out, settings, _open(out, settings), say, store)


def _stages(
    out: Path, settings: Settings, clock: StageClock, say: Callable[[str], None], store: Path | None
) -> dict[str, Any]:
    budgets = settings.budgets()
    with clock("text and tokenizer"):
        if store is not None and not (out / "store").exists():
            shutil.rmtree(out / ".store", ignore_errors=True)
            shutil.copytree(store, out / ".store", copy_function=os.link)
            os.rename(out / ".store", out / "store")
        built = _store(out / "store", settings, say)
    ladder = plan_ladder(
        out / "ladder",
        out / "store",
        budgets,
        sizes=SIZES,
        context=settings.context,
        seed=settings.seed,
        epochs=math.inf,
    )
    if ladder.most_passes > EPOCHS:
        raise ConfigError(
            f"minutes is {settings.minutes:g}, and runs that large would read a corpus {ladder.most_passes:.1f} times "
            f"over, where up to {EPOCHS:g} are nearly worth new text; give fewer minutes, or more text to `areca "
            "corpus build` and `areca ladder`."
        )
    if settings.minutes < TRIED_MINUTES:
        say(
            "ladder: the law was seen to predict 4% too high from ladders this small; "
            f"{TRIED_MINUTES:g} minutes or more are the size that was tried"
        )
    if ladder.most_passes > 1:
        most = f"{ladder.most_passes:.1f} times"
        say(f"ladder: some runs read a corpus {most}; the law counts repeated tokens as new ones")
    say(
        f"ladder: {len(ladder.jobs)} runs at {', '.join(f'{b:.2g}' for b in budgets)} exact FLOPs "
        f"on {sum(c['train_tokens'] for c in built['corpora']):,} tokens"
    )
    with clock("ladder"):
        _ladder(ladder)
    with clock("law"):
        law = _law(out, settings)
    with clock("plan"):
        plan = _plan(out, law, settings, budgets[-1] * STRETCH)
    say(
        f"plan: {plan['best']['n_params']:,} parameters, {plan['best']['n_tokens']:,} tokens; predicted loss "
        f"{plan['predicted_loss']:.4f}, 90% interval {plan['interval'][0]:.4f} to {plan['interval'][1]:.4f}"
    )
    for warning in plan["warnings"]:
        say(f"note: {warning}")
    with clock("planned run"):
        verified = _verify(out, plan, settings)
    error = plan["predicted_loss"] / verified["loss"] - 1
    held = "inside" if plan["interval"][0] <= verified["loss"] <= plan["interval"][1] else "OUTSIDE"
    say(f"achieved {verified['loss']:.4f}: predicted {error:+.2%} off, {held} the interval")
    with clock("samples"):
        _samples(out, settings)
    from areca.report import build_report

    clock.write()
    return build_report([out], out)


def _check_place(out: Path) -> None:
    """ConfigError if `out` is a directory of something else; what a quickstart killed at its start leaves is none."""
    path = out / RECORD
    if path.exists() or not out.exists():
        return
    if {p.name for p in out.iterdir()} - {LOCK} - leftovers(out, RECORD):
        raise ConfigError(f"{out} is not empty and holds no quickstart; choose another --out.")


def _open(out: Path, settings: Settings) -> StageClock:
    _check_place(out)
    path = out / RECORD
    asked = {**asdict(settings), "sources": list(settings.sources)}
    if path.exists():
        record = read_json(path)
        try:
            changed = differences(record["settings"], asked)
            clock = StageClock(path, record)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(f"{path} is not a quickstart's record of this version; choose another --out.") from None
        if changed:
            raise ConfigError(
                f"{out} holds a quickstart with other settings ({'; '.join(changed)}); choose another --out or go on "
                "with the same."
            )
        return clock
    record = {
        "minutes": settings.minutes,
        "seed": settings.seed,
        "started": time.time(),
        "settings": asked,
        "budgets_flops": list(settings.budgets()),
        "stages": [],
    }
    clock = StageClock(path, record)
    clock.write()
    return clock


def _store(path: Path, settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    from areca.data.build import build_store

    return build_store(path, settings.sources, vocab_size=settings.vocab_size, progress=say)


def _ladder(ladder: Ladder) -> None:
    progress = FamilyProgress({j.name: j.cost for j in ladder.jobs}, "run")
    run_ladder(ladder, on_progress=progress.progress, on_result=progress.result)


def _law(out: Path, settings: Settings) -> Any:
    from areca.laws import COUPLINGS, LawReport, fit_laws, load

    path = out / "law.json"
    if not path.exists():
        report = fit_laws(load([out / "ladder"]), seed=settings.seed, couplings=COUPLINGS)
        replace(report, sources=["ladder"]).save(path)
    # Read back either way, so that the plan is the same whether or not this call made the fit.
    return LawReport.load(path)


def _plan(out: Path, law: Any, settings: Settings, budget: float) -> dict[str, Any]:
    from areca.plan.plan import plan_run
    from areca.plan.template import cost_at, find_template

    path = out / "plan.json"
    if not path.exists():
        vocabulary = read_json(out / "store" / "store.json")["vocab_size"]
        shapes = [recipe.shape(vocabulary, width) for width in WIDTHS]
        plan = plan_run(
            law,
            budget,
            shapes,
            context=settings.context,
            batch=lambda shape: recipe.batch_sequences(shape, budget, settings.context),
            given="law.json",
        )
        cost = cost_at(find_template([out / "ladder"]), plan.best.flops_exact)
        write_json(path, replace(plan, cost=cost).to_dict())
    return read_json(path)


def _verify(out: Path, plan: dict[str, Any], settings: Settings) -> dict[str, Any]:
    from areca.model.config import ModelConfig

    model = ModelConfig(**plan["best"]["shape"])
    config = recipe.run_config(
        model,
        str(out / "store"),
        plan["budget_flops"],
        seed=settings.seed * 1000 + 999,
        threads=settings.verify_threads,
        context=settings.context,
    )
    name = "planned"
    job = Job(name, config, out / "verify", {"budget_flops": plan["budget_flops"], "name": name}, plan["budget_flops"])
    progress = FamilyProgress({name: job.cost}, "run")
    results = run_jobs(
        [[job]],
        threads=settings.verify_threads,
        workers=1,
        on_progress=progress.progress,
        on_result=progress.result,
    )
    return results[name]


def _samples(out: Path, settings: Settings) -> list[dict[str, Any]]:
    path = out / "samples.json"
    if not path.exists():
        from areca import runtime
        from areca.train.restore import sample

        runtime.prepare(settings.verify_threads)
        write_json(
            path, sample(out / "verify", list(PROMPTS), tokens=60, temperature=0.8, top_k=40, seed=settings.seed)
        )
    return read_json(path)
