"""`areca plan --target-loss`: the cheapest run that reaches a loss, in place of the best run for a budget."""

from typing import TYPE_CHECKING

from areca.cli.tables import plain_table, wide_console

if TYPE_CHECKING:
    from areca.plan.target import TargetPlan


def plan_for_target(
    law: str,
    target_loss: float,
    probability: float,
    others: dict[str, object],
    *,
    vocab_size: int | None = None,
    context: int | None = None,
    batch: int | None = None,
    level: float = 0.90,
    out: str = "",
    config_out: str = "",
    store: str = "",
    json: bool = False,
) -> int:
    """What `areca plan` does with --target-loss; `others` are its options that belong to a budget and not here."""
    from dataclasses import replace

    from areca.cli.options import deliver
    from areca.config import to_dict
    from areca.errors import ConfigError
    from areca.files import write_table
    from areca.plan.at_hand import at_hand
    from areca.plan.runconfig import about_store, run_config
    from areca.plan.target import plan_target
    from areca.plan.template import cost_at
    from areca.study import recipe

    if meaningless := [name for name, value in others.items() if value not in (None, "", False)]:
        option = f"--{meaningless[0].replace('_', '-')}"
        raise ConfigError(
            f"{option} belongs to a plan for a budget, and --target-loss asks for the cheapest run that reaches a "
            "loss; leave one of them out."
        )
    have = at_hand(
        law,
        vocab_size=vocab_size,
        context=context,
        batch=batch,
        rule=recipe,
        purpose="--target-loss with a probability",
    )
    found = plan_target(
        have.law,
        target_loss,
        have.shapes(),
        context=have.context,
        batch=have.batch,
        probability=probability,
        level=level,
        given=law,
    )
    found.warnings.extend(have.notes)
    plan = found.sure.plan
    found = replace(
        found,
        sure=replace(found.sure, plan=replace(plan, cost=cost_at(have.template, plan.best.flops_exact))),
    )
    written = []
    if config_out:
        found.warnings.extend(about_store(store))
        config, notes = run_config(plan, have.template, store, recipe)
        found.warnings.extend(notes)
        write_table(config_out, to_dict(config))
        written.append(config_out)
    deliver(found.to_dict(), lambda: _print(found), out=out, json=json, written=written)
    return 0


def _print(found: "TargetPlan") -> None:
    from areca.cli.plan_text import law_words, size_columns, used_words
    from areca.cli.units import short

    console = wide_console()
    plan, best = found.sure.plan, found.sure.plan.best
    console.print(
        f"the cheapest run with a loss of at most {found.target_loss:g} nats a token, {found.asked:.0%} of times:",
    )
    console.print(
        f"[bold]{best.n_params:,} parameters on {best.n_tokens:,} tokens[/bold]: {best.shape['n_layers']} layers of D "
        f"{best.shape['d_model']}, {best.shape['n_heads']} heads, {best.steps:,} steps of {plan.batch} x "
        f"{plan.context} tokens, [bold]{best.flops_exact:.4g} FLOPs[/bold]",
    )
    low, high = plan.interval or (float("nan"), float("nan"))
    console.print(
        f"predicted loss {plan.predicted_loss:.4f}, {plan.level:.0%} of such runs in {low:.4f} to {high:.4f}",
    )
    counts = size_columns(plan.law)
    table = plain_table("", "reaches it", *counts, "D", "exact FLOPs", "loss")
    for name, reach in (("this run", found.sure), ("an even chance", found.median)):
        if reach is not None:
            b = reach.plan.best
            sizes = map(short, (b.n_params, b.n_params_total)[: len(counts)])
            cells = (*sizes, short(b.n_tokens), f"{b.flops_exact:.4g}", f"{b.predicted_loss:.4f}")
            table.add_row(name, f"{reach.probability:.1%}", *cells)
    for name, near in found.neighbours.items():
        sizes = map(short, (near["n_params"], near["n_params_total"])[: len(counts)])
        cells = (*sizes, short(near["n_tokens"]), f"{near['flops_exact']:.4g}", "")
        table.add_row(f"{name} the size", f"{found.asked:.1%}", *cells)
    console.print(table)
    console.print(law_words(plan.law, best.n_params, best.n_params_total))
    if found.certainty_costs is not None:
        console.print(
            f"certainty costs {found.certainty_costs:.3g} times the FLOPs of an even chance; the law's floor is "
            f"{found.floor:.4g}, and the most any run reaches {found.target_loss:g} with is "
            f"{found.largest_probability:.1%}",
        )
    if cost := plan.cost:
        console.print(
            f"about {cost['seconds'] / 3600:.3g} hours at the {cost['flops_per_second']:.3g} FLOP/s of {cost['of']}, "
            f"{used_words(cost)}",
        )
    for warning in found.warnings:
        console.print(f"note: {warning}", style="yellow")
