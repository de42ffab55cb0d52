"""`areca fit`: scaling laws from run directories or any table."""

from typing import Any, Literal


def run(argv: list[str]) -> int:
    """Parses and runs `areca fit`."""
    from areca.cli.options import call

    return call(fit, argv, "areca fit")


def fit(
    paths: tuple[str, ...] = (),
    /,
    *,
    form: tuple[str, ...] = (),
    list_forms: bool = False,
    n_params: str = "",
    n_tokens: str = "",
    flops: str = "",
    loss: str = "",
    columns: tuple[str, ...] = (),
    group: str = "",
    unit: tuple[str, ...] = (),
    where: tuple[str, ...] = (),
    duplicates: Literal["check", "keep", "drop", "refuse"] = "check",
    flops_kind: Literal["exact", "6nd"] = "exact",
    rates: Literal["best", "all"] = "best",
    objective: Literal["huber", "lad", "l2", "huber-density"] = "huber",
    delta: float = 1e-3,
    couplings: tuple[float, ...] = (1.0,),
    drop_highest: int = 0,
    bootstrap: int = 1000,
    resampling: Literal["auto", "pairs", "residual", "parametric", "cluster"] = "auto",
    quick: bool = False,
    seed: int = 0,
    curves: bool = False,
    out: str = "",
    json: bool = False,
) -> int:
    """Fit scaling laws, with intervals, to run directories or any table.

    PATHS are run directories, a ladder, a quickstart (whose ladder is taken), a directory that holds any of these;
    CSV, TSV, JSON, JSONL or Parquet tables; exports and directories of Weights & Biases; event files of TensorBoard.
    Fitted are L(N, D) = E + A / N^alpha + B / D^beta, a parabola for each budget that four sizes share, and L(C).
    With --form, those forms instead: `areca fit --list-forms` shows them, and FILE.py:NAME is one of your own.

    Example: areca fit runs.csv --n-params params --n-tokens tokens --loss val_loss --out law.json

    Args:
        paths: what to read; several are taken together.
        form: laws to fit in place of L(N, D), by name or as FILE.py:NAME.
        list_forms: show the declared forms and stop.
        n_params: a table's column of parameters without embeddings; if not given, as for the next three, by its name.
        n_tokens: its column of training tokens; C / 6 N if there is none.
        flops: its column of training FLOPs; 6 N D if there is none.
        loss: its column of the final held-out loss in nats a token.
        columns: its columns of other quantities, each NAME=COLUMN, as unique_tokens=U (see docs/fit-my-runs.md).
        group: its column of what belongs together, for bootstraps of whole groups and for groups held out.
        unit: of its columns, each QUANTITY=UNIT, as flops=pf-days, n_tokens=sequences:2048, loss=bits-per-token;
            without, what the column's name says, else parameters, tokens, FLOPs and nats a token.
        where: take only the rows that meet these, each COLUMN=VALUE or COLUMN!=VALUE.
        duplicates: of rows with the same N, D and loss: keep all, drop all but the first, refuse, or check that they
            are at most a tenth.
        flops_kind: of run directories: exact FLOPs, or 6 N D.
        rates: of a ladder with several learning rates: the best of each size and budget, with all its seeds, or all.
        objective: what is summed over the residuals of ln L: Huber's function, absolute values (lad) or squares (l2);
            or huber-density, the likelihood of errors of that shape with their scale found too.
        delta: Huber's delta.
        couplings: how strongly the terms of N and D decide together: 1 is Chinchilla's sum. With several, as 1 1.5 2,
            predictions are an average over them, each weighed by how well it fits.
        drop_highest: leave out this many rows of highest loss.
        bootstrap: samples behind the intervals.
        resampling: how a sample is drawn: rows (pairs), residuals, normal noise (parametric), or whole groups of rows
            (cluster); auto is parametric below 60 rows and pairs from there.
        quick: leave out profiles, each budget left out, tests for bends and the table of choices.
        seed: of the bootstrap.
        curves: the envelope of training curves instead (Hoffmann's approach 1): which run has the lowest loss at each
            FLOP. From run directories, or a table with the columns run, n_params, n_tokens and loss along each run.
        out: write the laws here, for `areca plan` and `areca report`.
        json: print the laws as JSON.
    """
    import os
    from dataclasses import replace
    from pathlib import Path

    from areca.cli import laws_text
    from areca.cli.options import deliver, pairs, print_json
    from areca.errors import ConfigError
    from areca.files import check_output
    from areca.laws import fit_laws, load
    from areca.laws.forms.catalog import FORMS, fit_forms

    if list_forms:
        laws_text.list_forms(FORMS, json)
        return 0
    if not paths:
        raise ConfigError("there is nothing to fit; give run directories or a table.")
    if all(Path(p).is_file() for p in paths):
        for option, value, default in (("--flops-kind", flops_kind, "exact"), ("--rates", rates, "best")):
            if value != default:
                raise ConfigError(
                    f"{option} {value} is of run directories, and {paths[0]} is a file, whose columns say what they "
                    "hold; leave it out."
                )
    if curves:
        from areca.laws.fits.curves import read_curves
        from areca.laws.fits.envelope import fit_envelope

        if out:
            raise ConfigError(
                f"--out {out} writes laws for `areca plan`, and curves give none; take --json, or fit the runs."
            )
        envelope = fit_envelope(read_curves(paths, flops_kind=flops_kind), samples=bootstrap, seed=seed)
        print_json(envelope.to_dict()) if json else laws_text.print_envelope(envelope)
        return 0
    if out:
        check_output("--out", out, (*paths, *(f.rpartition(":")[0] for f in form if ":" in f)))
    reading: dict[str, Any] = {
        "n_params": n_params, "n_tokens": n_tokens, "flops": flops, "loss": loss,
        "columns": pairs("--columns", columns, "NAME=COLUMN"), "group": group,
        "units": pairs("--unit", unit, "QUANTITY=UNIT"), "where": where, "duplicates": duplicates,
        "flops_kind": flops_kind, "rates": rates,
    }  # fmt: skip
    settings: dict[str, Any] = {
        "objective": objective, "delta": delta, "drop_highest": drop_highest, "samples": bootstrap, "seed": seed,
        "method": resampling, "deep": not quick,
    }  # fmt: skip
    parent = Path(out or ".").resolve().parent
    sources = [os.path.relpath(Path(p).resolve(), parent) for p in paths]
    if form:
        if couplings != (1.0,):
            raise ConfigError("--couplings belongs to L(N, D); leave it out with --form.")
        laws = {**fit_forms(form, paths, reading, settings), "sources": sources}
        deliver(laws, lambda: laws_text.print_forms(laws), out=out, json=json)
    else:
        law = replace(fit_laws(load(paths, **reading), **settings, couplings=couplings), sources=sources)
        deliver(law.to_dict(), lambda: laws_text.print_law(law), out=out, json=json)
    return 0
