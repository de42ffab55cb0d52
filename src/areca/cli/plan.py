"""`areca plan`: the run to buy for a budget, with its predicted loss."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from areca.plan import Plan


def run(argv: list[str]) -> int:
    """Parses and runs `areca plan`."""
    from areca.cli.options import call

    return call(plan, argv, "areca plan")


def plan(
    law: str,
    /,
    *,
    flops: float = 0.0,
    target_loss: float = 0.0,
    probability: float = 0.90,
    vocab_size: int = 0,
    context: int = 0,
    batch: int = 0,
    level: float = 0.90,
    out: str = "",
    config_out: str = "",
    store: str = "",
    json: bool = False,
) -> int:
    """The model and the tokens to buy for a budget, with the loss they will reach and its interval.

    LAW is a law.json of `areca fit`, or what `areca fit` reads without naming columns, which is fitted first. The
    budget is in exact training FLOPs: every matrix product, with embeddings and attention, as `areca count` gives them.

    Example: areca plan law.json --flops 2e13 --vocab-size 2048 --context 128 --config-out run.json --store my-text

    Args:
        law: law.json, or a ladder, a quickstart, a directory of runs or a table.
        flops: the budget, exact training FLOPs.
        target_loss: or a loss, nats a token: the plan is then the cheapest run that reaches it with --probability.
        probability: of reaching --target-loss.
        vocab_size: V, tokens in the vocabulary; that of the runs behind the law if not given.
        context: T, tokens in a sequence; that of the runs if not given.
        batch: sequences a step; that of the runs if not given.
        level: probability that the interval holds the loss of one such run.
        out: write the plan here as JSON.
        config_out: write a configuration for `areca train` here.
        store: the token store the configuration trains on.
        json: print the plan as JSON.
    """
    from pathlib import Path

    from areca.cli.options import print_json
    from areca.cli.target import plan_for_target
    from areca.config import to_dict
    from areca.errors import ConfigError
    from areca.files import check_place, write_json
    from areca.plan.template import make_plan, run_config
    from areca.study import recipe

    if (flops == 0.0) == (target_loss == 0.0):
        raise ConfigError("a plan is for a budget or for a loss; give one of --flops and --target-loss.")
    if target_loss != 0.0:
        return plan_for_target(
            law, target_loss, probability, vocab_size=vocab_size, context=context, batch=batch, level=level,
            out=out, config_out=config_out, store=store, json=json,
        )  # fmt: skip
    for path in filter(None, (out, config_out)):
        check_place(path)  # so that neither is written if the other can't be
    result, template = make_plan(
        law, flops, vocab_size=vocab_size, context=context, batch=batch, level=level, rule=recipe
    )
    written = []
    if config_out:
        if store and not (Path(store) / "store.json").is_file():
            result.warnings.append(f"--store {store} is not here yet; `areca train` will look for it under that name.")
        config, notes = run_config(result, template, store, recipe)
        result.warnings.extend(notes)
        write_json(config_out, to_dict(config))
        written.append(config_out)
    if out:
        write_json(out, result.to_dict())
        written.append(out)
    if json:
        print_json(result.to_dict())
    else:
        _print(result)
        for path in written:
            print(f"written: {path}")
    return 0


def _print(p: "Plan") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    s, best = p.best.shape, p.best
    console.print(
        f"[bold]{best.n_params:,} parameters on {best.n_tokens:,} tokens[/bold]: {s['n_layers']} layers of D "
        f"{s['d_model']}, {s['n_heads']} heads, {best.steps:,} steps of {p.batch} x {p.context} tokens",
        soft_wrap=True,
    )
    console.print(
        f"predicted loss [bold]{p.predicted_loss:.4f}[/bold] nats a token, {p.level:.0%} of such runs in "
        f"{p.interval[0]:.4f} to {p.interval[1]:.4f} (half-width {p.half_width_relative:.2%})",
        soft_wrap=True,
    )
    table = Table("", "N", "D", "D / N", "exact FLOPs", "6 N D", "loss", box=None, pad_edge=False)
    rows = [("half", p.neighbours.get("half")), ("best", best), ("double", p.neighbours.get("double"))]
    for name, c in rows:
        if c is not None:
            cells = (_size(c.n_params), _size(c.n_tokens), f"{c.tokens_per_param:.3g}")
            table.add_row(name, *cells, f"{c.flops_exact:.4g}", f"{c.flops_6nd:.4g}", f"{c.predicted_loss:.4f}")
    console.print(table)
    low, high = p.flat_range
    console.print(f"within 0.1% of the best predicted loss: N from {low:,} to {high:,}", soft_wrap=True)
    if p.baseline:
        console.print(f"{p.baseline['rule']}: {p.baseline['loss']:.4f} ({p.baseline['label']})", soft_wrap=True)
    if p.cost:
        console.print(_cost(p.cost), soft_wrap=True)
    for warning in p.warnings:
        console.print(f"note: {warning}", style="yellow", soft_wrap=True)


def _size(value: float) -> str:
    size, unit = next((s for s in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")) if value >= s[0]), (1.0, ""))
    return f"{value / size:.4g}{unit}"


def _cost(cost: dict[str, Any]) -> str:
    energy, carbon = cost["energy_kwh"], cost["carbon_kg"]
    return (
        f"about {cost['seconds'] / 60:.3g} minutes at the {cost['flops_per_second']:.3g} FLOP/s of {cost['of']}, "
        f"{energy['value']:.3g} kWh, {energy['kind']}; {carbon['value']:.3g} kg CO2e, {carbon['kind']}"
    )
