"""`areca fit`: scaling laws from run directories or any table."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from areca.laws import LawReport


def run(argv: list[str]) -> int:
    """Parses and runs `areca fit`."""
    from areca.cli.options import call

    return call(fit, argv, "areca fit")


def fit(
    paths: tuple[str, ...],
    /,
    *,
    n_params: str = "",
    n_tokens: str = "",
    flops: str = "",
    loss: str = "",
    flops_kind: Literal["exact", "6nd"] = "exact",
    rates: Literal["best", "all"] = "best",
    objective: Literal["huber", "lad", "l2"] = "huber",
    delta: float = 1e-3,
    couplings: tuple[float, ...] = (1.0,),
    drop_highest: int = 0,
    bootstrap: int = 1000,
    seed: int = 0,
    curves: bool = False,
    out: str = "",
    json: bool = False,
) -> int:
    """Fit scaling laws, with intervals, to run directories or any table.

    PATHS are run directories, a ladder, a quickstart (whose ladder is taken), a directory that holds any of these, or
    CSV, TSV, JSON, JSONL or Parquet tables.
    Fitted are L(N, D) = E + A / N^alpha + B / D^beta, a parabola for each budget that four sizes share, and L(C).

    Example: areca fit runs.csv --n-params params --n-tokens tokens --loss val_loss --out law.json

    Args:
        paths: what to read; several are taken together.
        n_params: a table's column of parameters without embeddings; n_params if not given.
        n_tokens: its column of training tokens; n_tokens if not given, C / 6 N if there is none.
        flops: its column of training FLOPs; flops if not given, 6 N D if there is none.
        loss: its column of the final loss in nats a token; loss if not given.
        flops_kind: of run directories: exact FLOPs, or 6 N D.
        rates: of a ladder with several learning rates: the best of each size and budget, with all its seeds, or all.
        objective: what is summed over the residuals of ln L: Huber's function, absolute values (lad) or squares (l2).
        delta: Huber's delta.
        couplings: how strongly the terms of N and D decide together: 1 is Chinchilla's sum. With several, as 1 1.5 2,
            predictions are an average over them, each weighed by how well it fits.
        drop_highest: leave out this many rows of highest loss.
        bootstrap: samples behind the intervals.
        seed: of the bootstrap.
        curves: the envelope of training curves instead (Hoffmann's approach 1): which run has the lowest loss at each
            FLOP. From run directories, or a table with the columns run, n_params, n_tokens and loss along each run.
        out: write the laws here, for `areca plan`.
        json: print the laws as JSON.
    """
    import os
    from dataclasses import replace
    from pathlib import Path

    from areca.cli.options import print_json
    from areca.files import check_place
    from areca.laws import fit_laws, load

    if curves:
        return _curves(paths, flops_kind, bootstrap, seed, out, json)
    if out:
        check_place(out)
    observations = load(
        paths, n_params=n_params, n_tokens=n_tokens, flops=flops, loss=loss, flops_kind=flops_kind, rates=rates
    )
    law = fit_laws(
        observations,
        objective=objective,
        delta=delta,
        drop_highest=drop_highest,
        samples=bootstrap,
        seed=seed,
        couplings=couplings,
    )
    if out:
        parent = Path(out).resolve().parent
        law = replace(law, sources=[os.path.relpath(Path(p).resolve(), parent) for p in paths])
        law.save(out)
    if json:
        print_json(law.to_dict())
    else:
        _print(law)
        if out:
            print(f"written: {out}")
    return 0


def _curves(paths: tuple[str, ...], flops_kind: str, samples: int, seed: int, out: str, json: bool) -> int:
    from rich.console import Console

    from areca.cli.options import print_json
    from areca.errors import ConfigError
    from areca.laws.curves import read_curves
    from areca.laws.envelope import fit_envelope

    if out:
        raise ConfigError(
            f"--out {out} writes laws for `areca plan`, and curves give none; take --json, or fit the runs."
        )
    found = fit_envelope(read_curves(paths, flops_kind=flops_kind), samples=samples, seed=seed)  # type: ignore[arg-type]
    if json:
        print_json(found.to_dict())
        return 0
    console = Console(highlight=False)
    low, high = found.flops_range
    console.print(f"[bold]The envelope of {found.runs} curves[/bold]  {found.winners} runs are lowest somewhere, "
                  f"{low:.3g} to {high:.3g} FLOPs")  # fmt: skip
    for letter in "nd":
        exponent, (start, end) = getattr(found, f"{letter}_exponent"), getattr(found, f"{letter}_exponent_interval")
        factor = getattr(found, f"{letter}_coefficient")
        console.print(f"{letter.upper()}_opt ~ C^{exponent:.4g}  ({start:.4g} to {end:.4g}, over runs), x {factor:.4g}")
    for note in found.notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True)
    return 0


def _print(law: "LawReport") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    f, level = law.parametric, f"{law.level:.0%} interval"
    console.print("[bold]L(N, D) = E + A / N^alpha + B / D^beta[/bold]  nats a token, N without embeddings")
    table = Table("", "value", level, "standard error", box=None, pad_edge=False)
    for name in ("E", "A", "alpha", "B", "beta"):
        low, high = law.intervals[name]
        table.add_row(name, f"{getattr(f, name):.5g}", f"{low:.4g} to {high:.4g}", f"{law.standard_errors[name]:.2g}")
    for name, words in (("n_exponent", "N_opt ~ C^"), ("d_exponent", "D_opt ~ C^")):
        low, high = law.intervals[name]
        share = f.beta / (f.alpha + f.beta) if name == "n_exponent" else f.alpha / (f.alpha + f.beta)
        table.add_row(words, f"{share:.4g}", f"{low:.4g} to {high:.4g}", "", style="dim")
    console.print(table)
    delta = f" (delta {f.delta:g})" if f.delta else ""
    console.print(
        f"{f.status}: {f.share_of_starts:.0%} of {f.n_starts} starts at the optimum; {f.objective}{delta} over "
        f"{f.n_points} rows = {f.objective_value:.6g}; one run's noise {f.sigma:.2%} of the loss; "
        f"{law.samples.method} bootstrap of {len(law.samples.theta):,}",
        soft_wrap=True,
    )
    best = law.optimum(float(law.observations.flops.max()))
    console.print(
        f"at the largest budget, {best.flops:.3g} FLOPs taken as 6 N D: best N {_size(best.n)} "
        f"({_size(*best.intervals['n'][::-1])}), D {_size(best.d)} ({_size(*best.intervals['d'][::-1])}), "
        f"loss {best.loss:.4f} ({best.intervals['loss'][0]:.4f} to {best.intervals['loss'][1]:.4f}, the law's)",
        soft_wrap=True,
    )
    if law.average:
        shares = ", ".join(
            f"{f.weight:.0%} of coupling {f.fit.coupling:g} (E {f.fit.E:.4g})" for f in law.average.forms
        )
        console.print(f"predictions are an average of L = E + ((A/N^a)^q + (B/D^b)^q)^(1/q): {shares}", soft_wrap=True)
    if law.isoflop:
        console.print("\n[bold]IsoFLOP valleys[/bold]  ln L as a curve in ln N")
        table = Table("FLOPs", "runs", "best N", level, "N within 0.1%", "best D", "loss", box=None, pad_edge=False)
        for v in law.isoflop["valleys"]:
            if v["interior"] and v["curved"]:
                best = [
                    _size(v["n_opt"]),
                    _size(*v["n_opt_interval"][::-1]),
                    _size(*v["n_flat"][::-1]),
                    _size(v["d_opt"]),
                ]
            else:
                best = ["at the edge" if v["curved"] else "no valley", "", "", ""]
            table.add_row(f"{v['budget_flops']:.3g}", str(len(v["points"])), *best, f"{v['loss_min']:.4f}")
        console.print(table)
        iso = law.isoflop
        for letter, key in (("N", "n"), ("D", "d")):
            if iso[f"{key}_exponent"] is not None:
                low, high = iso[f"{key}_exponent_interval"]
                console.print(f"{letter}_opt ~ C^{iso[f'{key}_exponent']:.4g}  ({low:.4g} to {high:.4g})")
    if law.compute:
        c, (low, high) = law.compute, law.compute["exponent_interval"]
        console.print(
            f"\n[bold]L(C)[/bold] = (C_c / C)^{c['exponent']:.4g}  ({low:.4g} to {high:.4g}), "
            f"C_c = {c['c_c_flops']:.4g} FLOPs = {c['c_c_pf_days']:.4g} PF-days",
            soft_wrap=True,
        )
    if law.compute_with_floor:
        c = law.compute_with_floor
        low, high = c["floor_interval"]
        console.print(
            f"[bold]L(C)[/bold] = {c['floor']:.4g} + (C_c / C)^{c['exponent']:.4g}, floor {low:.4g} to {high:.4g}, "
            f"C_c = {c['c_c_flops']:.4g} FLOPs",
            soft_wrap=True,
        )
    if law.validation:
        v = law.validation
        console.print(
            f"check: fitted without the largest budget ({v['stretch']:.3g} times the rest), the law predicts its "
            f"{v['rows']} runs within {v['mean_error']:+.2%} on average, {v['held']} inside their {v['level']:.0%} "
            "intervals",
            soft_wrap=True,
        )
    for note in law.notes:
        console.print(f"note: {note}", style="yellow", soft_wrap=True)


def _size(value: float, low: float | None = None) -> str:
    """`2.06 B`, or with `low` the range `1.87 to 2.06 B`."""
    size, unit = next((s for s in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")) if value >= s[0]), (1.0, ""))
    return f"{'' if low is None else f'{low / size:.3g} to '}{value / size:.3g}{unit}"
