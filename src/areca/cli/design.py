"""`areca design`: which runs to add to a ladder, so that a prediction narrows the most for its FLOPs."""

from typing import TYPE_CHECKING

from areca.cli.tables import plain_table, wide_console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from areca.plan.experiments import Design


def run(argv: list[str]) -> int:
    """Parses and runs `areca design`."""
    from areca.cli.options import call

    return call(design, argv, "areca design")


def design(
    law: str,
    /,
    *,
    flops: float,
    target_flops: float | None = None,
    target_params: float | None = None,
    target_tokens: float | None = None,
    runs: int = 6,
    vocab_size: int | None = None,
    context: int | None = None,
    batch: int | None = None,
    level: float = 0.90,
    out: str = "",
    config_dir: str = "",
    store: str = "",
    json: bool = False,
) -> int:
    """The next runs of a ladder: those that narrow the prediction of a larger run the most for an allowance.

    LAW is a law.json of `areca fit`, or what `areca fit` reads without naming columns, which is fitted first; a
    published law won't do, for it comes without the runs. The target is the run that `areca plan` buys for
    --target-flops, or --target-params, in the law's count, with --target-tokens. Beside the proposal stands the
    ladder's plain next rung.
    With --config-dir the runs are written for `areca train`; fit them together with the ladder's.

    Example: areca design law.json --flops 3e13 --target-flops 1e15 --config-dir next --store my-text

    Args:
        law: law.json, or a ladder, a quickstart, a directory of runs or a table.
        flops: what the runs may cost together, exact training FLOPs.
        target_flops: the budget of the run that is to be predicted.
        target_params: or its N, in the law's count: parameters without embeddings, or all of them where the N of the
            rows that were fitted counts them; the output says which.
        target_tokens: and its D, tokens.
        runs: how many runs at most.
        vocab_size: V, tokens in the vocabulary; that of the runs behind the law if not given.
        context: T, tokens in a sequence; that of the runs if not given.
        batch: sequences a step; that of the runs if not given.
        level: probability that the interval holds the loss of one target run.
        out: write the design here as JSON.
        config_dir: write a configuration for `areca train` here for each run, NAME.json; made as the runs behind the
            law, or where those are a table as `areca plan --config-out` makes them.
        store: the token store the configurations train on.
        json: print the design as JSON.
    """
    from pathlib import Path

    from areca.cli.options import deliver
    from areca.config import to_dict
    from areca.errors import ConfigError
    from areca.files import check_output, write_json
    from areca.plan.at_hand import at_hand
    from areca.plan.experiments import design_runs, run_configs
    from areca.study import recipe

    if store and not config_dir:
        raise ConfigError(f"--store {store} goes into configurations; give --config-dir with it, or leave it out.")
    if out:
        check_output("--out", out, filter(None, (law, store)))
    target = None
    if target_params is not None and target_tokens is not None:
        target = (target_params, target_tokens)
    elif target_params is not None or target_tokens is not None:
        raise ConfigError("--target-params and --target-tokens belong together; give both, or --target-flops.")
    have = at_hand(
        law, vocab_size=vocab_size, context=context, batch=batch, rule=recipe, purpose="the design of further runs"
    )
    found = design_runs(
        have,
        allowance=flops,
        target_flops=target_flops,
        target=target,
        runs=runs,
        level=level,
        rule=recipe,
    )
    written = []
    if config_dir:
        configs, notes = run_configs(found, have, store, recipe)
        found.warnings.extend(notes)
        paths = {Path(config_dir) / f"{name}.json": config for name, config in configs.items()}
        _check_directory(Path(config_dir), [*paths, *([Path(out)] if out else [])])
        for path in paths:
            check_output("--config-dir's", path, filter(None, (law, out)))
        for path, config in paths.items():
            write_json(path, to_dict(config))
            written.append(str(path))
    deliver(found.to_dict(), lambda: _print(found), out=out, json=json, written=written)
    return 0


def _check_directory(directory: "Path", ours: "Sequence[Path]") -> None:
    """ConfigError where configurations of another design would stand among these and be trained with them."""
    from areca.errors import ConfigError
    from areca.files import same_file

    others = sorted(p.name for p in directory.glob("*.json") if not any(same_file(p, q) for q in ours))
    if others:
        raise ConfigError(
            f"--config-dir {directory} holds {', '.join(others[:3])}{', ...' if len(others) > 3 else ''}, which "
            f"{'is' if len(others) == 1 else 'are'} not of this design; name a new directory or empty this one."
        )


def _print(d: "Design") -> None:
    from areca.cli.plan_text import law_words, size_columns
    from areca.cli.units import short

    console = wide_console()
    counts = size_columns(d.law)
    size = short((d.n_params, d.n_params_total)[len(counts) - 1])
    which = ", embeddings included," if d.law["n_counts"] == "total" else ""
    console.print(
        f"target: {size} parameters{which} on {short(d.n_tokens)} tokens ({d.flops:.3g} FLOPs), predicted loss "
        f"{d.predicted_loss:.4f}, {d.level:.0%} of such runs in {d.interval[0]:.4f} to {d.interval[1]:.4f} (half-width "
        f"{d.half_width_relative:.2%}, of which {d.noise_half_width:.2%} is one run's noise and stays)",
    )
    console.print(law_words(d.law, d.n_params, d.n_params_total))
    table = plain_table("run", *counts, "D", "D / N", "layers x D", "steps", "exact FLOPs", "loss")
    for i, r in enumerate(d.proposed.runs, 1):
        shape = f"{r.shape['n_layers']} x {r.shape['d_model']}"
        sizes = map(short, (r.n_params, r.n_params_total)[: len(counts)])
        size = (*sizes, short(r.n_tokens), f"{r.n_tokens / r.n_params:.3g}")
        steps, cost = f"{r.steps:,} of {r.batch}", f"{r.flops_exact:.3g}"
        table.add_row(str(i), *size, shape, steps, cost, f"{r.predicted_loss:.4f}")
    console.print(table)
    table = plain_table("", "runs", "FLOPs", "half-width", "narrowing per FLOP")
    table.add_row("now", "", "", f"{d.half_width_relative:.2%}", "")
    unit = d.next_rung.narrowing_per_flop if d.next_rung else 0.0
    for name, added in (
        ("with the proposed", d.proposed),
        ("with the next rung", d.next_rung),
        ("as many, at its FLOPs", d.at_the_rungs_cost),
    ):
        if added is not None:
            per = f"{added.narrowing_per_flop / unit:.3g} x the rung's" if unit else ""
            cells = (str(len(added.runs)), f"{added.flops:.3g}", f"{added.half_width_relative:.2%}", per)
            table.add_row(name, *cells)
    console.print(table)
    for warning in d.warnings:
        console.print(f"note: {warning}", style="yellow")
