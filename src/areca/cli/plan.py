"""`areca plan`: the run to buy for a budget, with its predicted loss."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areca.plan import Plan


def run(argv: list[str]) -> int:
    """Parses and runs `areca plan`."""
    from areca.cli.options import call

    return call(plan, argv, "areca plan")


def plan(
    LAW: str = "",
    /,
    *,
    law: str = "",
    flops: float | None = None,
    usd: float | None = None,
    usd_per_chip_hour: float | None = None,
    chip_hours: float | None = None,
    deadline_hours: float | None = None,
    chips: int | None = None,
    chip: str = "",
    mfu: float | None = None,
    watts: float | None = None,
    pue: float | None = None,
    kg_per_kwh: float | None = None,
    vocab_size: int | None = None,
    context: int | None = None,
    batch: int | None = None,
    b_crit: str = "",
    mesh: str = "",
    dry_run: bool = False,
    unique_tokens: float | None = None,
    over_train: float | None = None,
    stop_above_convergence: float | None = None,
    inference_tokens: float | None = None,
    target_loss: float | None = None,
    probability: float | None = None,
    level: float = 0.90,
    out: str = "",
    config_out: str = "",
    store: str = "",
    json: bool = False,
) -> int:
    """The model and the tokens to buy for a budget, with the loss they will reach and its interval.

    LAW is a law.json of `areca fit`, what `areca fit` reads without naming columns, which is fitted first, or a
    published law: kaplan, chinchilla, chinchilla-rounded, besiroglu, data-constrained. The budget is one of --flops
    (exact training FLOPs, every matrix product counted, as `areca count` gives them), --usd, --chip-hours and
    --deadline-hours; or --target-loss asks for the cheapest run that reaches a loss.

    Example: areca plan law.json --flops 2e13 --vocab-size 2048 --context 128 --config-out run.json --store my-text

    Args:
        LAW: a law.json, a ladder, a quickstart, a directory of runs, a table, or a published law's name.
        law: the same, as an option.
        flops: the budget, exact training FLOPs.
        usd: the budget in money, with --usd-per-chip-hour and --chip.
        usd_per_chip_hour: what an hour of one chip costs.
        chip_hours: the budget in hours of one --chip.
        deadline_hours: the budget in hours of all --chips.
        chips: how many share the work; the mesh's devices if not given.
        chip: what it runs on, such as h100 (`areca count --chip list`), or a TOML or JSON file that describes yours.
        mfu: share of the chip's peak that training reaches; if not given, what the runs behind the law reached on that
            chip, or an assumption that is printed.
        watts: average of a chip with its share of the host; the chip's TDP if not given.
        pue: what the building takes over what its machines take; $ARECA_PUE, or 1.1 is assumed, if not given.
        kg_per_kwh: CO2e of the grid; that of $ARECA_REGION, or the United States' average, if not given.
        vocab_size: V, tokens in the vocabulary; that of the runs behind the law if not given.
        context: T, tokens in a sequence; that of the runs if not given.
        batch: sequences a step; that of the runs if not given.
        b_crit: let the batch grow with the critical batch instead: kaplan, or "B*,alpha" of B* / L^(1 / alpha) tokens,
            such as 2.1e8,0.21. A published law does so by Kaplan's if no --batch is given.
        mesh: DATAxMODEL devices that the shape must divide over, for the configuration and --dry-run.
        dry_run: compile the training step for the mesh and chip, and say whether it fits (`areca dryrun`).
        unique_tokens: how many different tokens there are; a longer run reads some again.
        over_train: tokens a parameter, as a multiple of the optimum's, at the same compute.
        stop_above_convergence: how far above its converged loss a run stops, such as 0.1; with --law kaplan.
        inference_tokens: tokens the model will read and write in service: the cheapest training and service together.
        target_loss: in place of a budget: the cheapest run that reaches this loss with --probability, by a law fitted
            to runs (a published one has no interval, so no probability); with
            --inference-tokens the loss to serve at, that of the budget's best run if not given.
        probability: of reaching --target-loss; 0.9 if not given.
        level: probability that the interval holds the loss of one such run.
        out: write the plan here as JSON.
        config_out: write a configuration for `areca train` here, TOML if the name ends in .toml.
        store: the token store the configuration trains on.
        json: print the plan as JSON.
    """
    from dataclasses import replace

    from areca.cli.options import deliver
    from areca.cli.plan_text import print_plan
    from areca.cli.target import plan_for_target
    from areca.config import to_dict
    from areca.errors import ConfigError
    from areca.files import check_output, same_file, write_table
    from areca.footprint.regions import given_here
    from areca.plan import Choice, Purchase, Request, make_plan, run_config
    from areca.plan.runconfig import about_store
    from areca.study import recipe

    if bool(LAW) == bool(law):
        raise ConfigError(
            f"{'LAW and --law are both given' if law else 'LAW is missing'}; name one law, such as law.json or "
            "chinchilla; see `areca plan --help`."
        )
    if probability is not None and (target_loss is None or inference_tokens is not None):
        raise ConfigError(
            f"--probability {probability:g} is that of reaching a --target-loss by a law; give --target-loss with it"
            f"{', without --inference-tokens' if inference_tokens is not None else ''}, or leave it out."
        )
    if store and not config_out:
        raise ConfigError(f"--store {store} goes into a configuration; give --config-out with it, or leave it out.")
    given_here()  # ARECA_REGION and ARECA_PUE, before any work
    for option, path in (("--out", out), ("--config-out", config_out)):
        if path:  # so that neither is written if the other can't be
            check_output(option, path, filter(None, (LAW or law, chip, store)))
    if out and config_out and same_file(out, config_out):
        raise ConfigError(f"--out and --config-out are both {config_out}; name two files.")
    if target_loss is not None and inference_tokens is None:
        given = {
            "flops": flops, "usd": usd, "usd_per_chip_hour": usd_per_chip_hour, "chip_hours": chip_hours,
            "deadline_hours": deadline_hours, "chips": chips, "chip": chip, "mfu": mfu, "watts": watts, "pue": pue,
            "kg_per_kwh": kg_per_kwh, "b_crit": b_crit, "mesh": mesh, "dry_run": dry_run,
            "unique_tokens": unique_tokens, "over_train": over_train,
            "stop_above_convergence": stop_above_convergence,
        }  # fmt: skip
        return plan_for_target(
            LAW or law, target_loss, 0.90 if probability is None else probability, given,
            vocab_size=vocab_size, context=context, batch=batch, level=level, out=out, config_out=config_out,
            store=store, json=json,
        )  # fmt: skip
    request = Request(
        law=LAW or law,
        purchase=Purchase(
            flops, usd, chip_hours, deadline_hours, usd_per_chip_hour, chips, chip, mfu, watts, pue, kg_per_kwh
        ),
        vocab_size=vocab_size,
        context=context,
        batch=batch,
        b_crit=b_crit,
        mesh=mesh,
        level=level,
        choice=Choice(over_train, stop_above_convergence, inference_tokens, target_loss),
        unique_tokens=unique_tokens,
    )
    result, template = make_plan(request, recipe)
    config = None
    if config_out:
        result.warnings.extend(about_store(store))
        config, notes = run_config(result, template, store, recipe)
        result.warnings.extend(notes)
    if dry_run:
        result = replace(result, memory=_memory(result, chip))
    written = []
    if config is not None:
        write_table(config_out, to_dict(config))
        written.append(config_out)
    deliver(result.to_dict(), lambda: print_plan(result), out=out, json=json, written=written)
    return 0


def _memory(p: "Plan", chip: str) -> dict[str, Any]:
    """What `areca dryrun` says of the planned run, asked in a process whose jax has not started yet."""
    import json
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    from areca.errors import ConfigError

    data, model = p.mesh or (1, 1)
    with tempfile.TemporaryDirectory() as place:
        shape = Path(place) / "model.json"
        shape.write_text(json.dumps(p.best.shape))
        words = [str(shape), "--mesh", f"{data}x{model}", "--batch", str(p.batch), "--context", str(p.context)]
        words += ["--chip", chip] if chip else []
        done = subprocess.run(
            [sys.executable, "-m", "areca", "dryrun", *words, "--json"], capture_output=True, text=True, check=False
        )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise ConfigError(f"--dry-run: {said[-1].removeprefix('areca dryrun: ')}")
    return json.loads(done.stdout)
