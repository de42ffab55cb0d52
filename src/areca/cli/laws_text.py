"""What `areca fit` prints: laws as tables of numbers, with how far to trust them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areca.cli.tables import plain_table, wide_console
from areca.cli.units import compact, counted

if TYPE_CHECKING:
    from rich.console import Console

    from areca.laws import Envelope, LawReport
    from areca.laws.forms import Form

EXPONENTS = (("n_exponent", "N_opt ~ C^"), ("d_exponent", "D_opt ~ C^"))


def print_law(law: "LawReport") -> None:
    console = wide_console()
    f, level = law.parametric, f"{law.level:.0%} interval"
    n = "with" if law.n_counts == "total" else "without"
    console.print(f"[bold]L(N, D) = E + A / N^alpha + B / D^beta[/bold]  nats a token, N {n} embeddings")
    table = plain_table("", "value", level, "standard error")
    for name in ("E", "A", "alpha", "B", "beta"):
        low, high = law.intervals[name]
        table.add_row(name, f"{getattr(f, name):.5g}", f"{low:.4g} to {high:.4g}", f"{law.standard_errors[name]:.2g}")
    for name, words in EXPONENTS:
        low, high = law.intervals[name]
        share = f.beta / (f.alpha + f.beta) if name == "n_exponent" else f.alpha / (f.alpha + f.beta)
        table.add_row(words, f"{share:.4g}", f"{low:.4g} to {high:.4g}", "", style="dim")
    console.print(table)
    _warn(console, law.warnings)
    delta = f" (delta {f.delta:g})" if f.delta else ""
    console.print(
        f"{f.status}: {f.share_of_starts:.0%} of {f.n_starts} starts at the optimum, condition {f.condition:.2g}; "
        f"{f.objective}{delta} over "
        f"{f.n_points} rows = {f.objective_value:.6g}; one run's noise {f.sigma:.2%} of the loss; "
        f"{law.samples.method} bootstrap of {len(law.samples.theta):,}",
    )
    best = law.optimum(float(law.observations.flops.max()))
    console.print(
        f"at the largest budget, {best.flops:.3g} FLOPs taken as 6 N D: best N {compact(best.n)} "
        f"({compact(*best.intervals['n'][::-1])}), D {compact(best.d)} ({compact(*best.intervals['d'][::-1])}), "
        f"loss {best.loss:.4f} ({best.intervals['loss'][0]:.4f} to {best.intervals['loss'][1]:.4f}, the law's)",
    )
    if law.average:
        shares = ", ".join(
            f"{f.weight:.0%} of coupling {f.fit.coupling:g} (E {f.fit.E:.4g})" for f in law.average.forms
        )
        console.print(f"predictions are an average of L = E + ((A/N^a)^q + (B/D^b)^q)^(1/q): {shares}")
    if law.isoflop:
        console.print("\n[bold]IsoFLOP valleys[/bold]  ln L as a curve in ln N")
        table = plain_table("FLOPs", "runs", "best N", level, "N within 0.1%", "best D", "loss")
        for v in law.isoflop["valleys"]:
            if v["interior"] and v["curved"]:
                best = [
                    compact(v["n_opt"]),
                    compact(*v["n_opt_interval"][::-1]),
                    compact(*v["n_flat"][::-1]),
                    compact(v["d_opt"]),
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
        )
    if law.compute_with_floor:
        c = law.compute_with_floor
        low, high = c["floor_interval"]
        console.print(
            f"[bold]L(C)[/bold] = {c['floor']:.4g} + (C_c / C)^{c['exponent']:.4g}, floor {low:.4g} to {high:.4g}, "
            f"C_c = {c['c_c_flops']:.4g} FLOPs",
        )
    if law.validation:
        v = law.validation
        console.print(
            f"check: fitted without {v.get('left_out') or 'the largest budget'} ({v['stretch']:.3g} times the rest), "
            f"the law predicts its {counted(v['rows'], 'run')} within {v['mean_error']:+.2%} on average, {v['held']} "
            f"inside their {v['level']:.0%} intervals",
        )
    _deep(console, law)
    for note in law.notes:
        console.print(f"note: {note}", style="yellow")


def _warn(console: "Console", warnings: Sequence[str]) -> None:
    """What makes the numbers above no result to build on."""
    for warning in warnings:
        console.print(f"WARNING: {warning}", style="bold red")


def _deep(console: "Console", law: "LawReport") -> None:
    """How far to trust the law: three kinds of interval, each budget left out, bends, and the analyst's choices."""
    if law.intervals_by:
        console.print(
            f"\n[bold]Intervals by three ways[/bold]  {law.level:.0%}; where they differ much, the rows do not decide"
        )
        table = plain_table("", *law.intervals_by)
        for name in ("E", "A", "alpha", "B", "beta"):
            table.add_row(name, *(_ends(by[name]) for by in law.intervals_by.values()))
        console.print(table)
    if law.leave_one_out:
        console.print("\n[bold]Left out in turn[/bold]  the law of the others against each")
        table = plain_table("", "runs", "mean error", "worst", "inside")
        for v in law.leave_one_out:
            name = v["left_out"] or f"{v['budget_flops']:.3g} FLOPs"
            table.add_row(name, str(v["rows"]), f"{v['mean_error']:+.2%}", f"{v['worst_error']:+.2%}", str(v["held"]))
        held, rows = (sum(v[k] for v in law.leave_one_out) for k in ("held", "rows"))
        console.print(table)
        console.print(f"{held} of {rows} runs inside their {law.level:.0%} intervals")
    if law.curvature:
        console.print("\n[bold]Bends[/bold]  the square's coefficient where the law has a straight line, or no shape")
        for b in law.curvature:
            low, high = b["interval"]
            console.print(
                f"{b['of']}: {b['coefficient']:+.3g} ({low:+.3g} to {high:+.3g}), p {b['p_value']:.2g}: {b['says']}",
            )
    if law.sensitivity:
        console.print(f"\n[bold]What the choices move[/bold]  best N and loss at {law.sensitivity['flops']:.3g} FLOPs")
        table = plain_table("", "E", "alpha", "beta", "N_opt ~ C^", "best N", "loss")
        for row in law.sensitivity["rows"]:
            if row["failed"]:
                table.add_row(row["choice"], "failed")
            else:
                numbers = (f"{row[k]:.4g}" for k in ("E", "alpha", "beta", "n_exponent"))
                table.add_row(row["choice"], *numbers, compact(row["n_opt"]), f"{row['predicted_loss']:.4f}")
        console.print(table)
        for row in law.sensitivity["rows"]:
            if row["failed"]:
                console.print(f"failed, {row['choice']}: {row['failed']}")


def print_envelope(found: "Envelope") -> None:
    """The envelope of training curves: which runs are lowest, and the power laws through them."""

    console = wide_console()
    low, high = found.flops_range
    console.print(
        f"[bold]The envelope of {found.runs} curves[/bold]  {found.winners} runs are lowest somewhere, {low:.3g} to "
        f"{high:.3g} FLOPs",
    )
    for letter in "nd":
        exponent, ends = getattr(found, f"{letter}_exponent"), getattr(found, f"{letter}_exponent_interval")
        factor = getattr(found, f"{letter}_coefficient")
        console.print(f"{letter.upper()}_opt ~ C^{exponent:.4g}  ({_ends(ends)}, over runs), x {factor:.4g}")
    for note in found.notes:
        console.print(f"note: {note}", style="yellow")


def print_forms(laws: dict[str, Any]) -> None:
    """Laws of declared forms, out of law.json."""
    console = wide_console()
    for i, f in enumerate(laws["forms"]):
        source = f"; {f['source']}" if f["source"] else ""
        console.print(
            f"{chr(10) if i else ''}[bold]{f['equation']}[/bold]  {f['response_unit']}{source}", soft_wrap=True
        )
        ways = {k: v for k, v in f["intervals_by"].items() if k != "bootstrap"}
        table = plain_table("", "value", f"{f['level']:.0%} interval", "standard error", *ways, "unit")
        for name, value in f["values"].items():
            error = f"{f['standard_errors'][name]:.2g}"
            others = (_ends(by[name]) for by in ways.values())
            table.add_row(name, f"{value:.5g}", _ends(f["intervals"][name]), error, *others, f["units"][name])
        for name, value in f["derived"].items():
            table.add_row(name, f"{value:.4g}", _ends(f["intervals"][name]), "", *("" for _ in ways), style="dim")
        console.print(table)
        _warn(console, f["warnings"])
        console.print(_status(f))
        if c := f["check"]:
            mean, worst = (f"{c[k]:+.2%}" if c["relative"] else f"{c[k]:+.3g}" for k in ("mean_error", "worst_error"))
            console.print(
                f"check: fitted without the {counted(c['rows'], 'row')} furthest out, the law predicts them within "
                f"{mean} on average, {worst} at worst, {c['held']} inside their {c['level']:.0%} intervals",
            )
        for note in f["notes"]:
            console.print(f"note: {note}", style="yellow")


def _status(f: dict[str, Any]) -> str:
    delta = f" (delta {f['delta']:g})" if f["delta"] else ""
    noise = f"{f['sigma']:.2%} of the {f['response']}" if f["compare"] == "log" else f"{f['sigma']:.3g}"
    return (
        f"{f['status']}: {f['share_of_starts']:.0%} of {f['n_starts']} starts at the optimum, condition "
        f"{f['condition']:.2g}; {f['objective']}{delta} over {f['n_points']} rows = {f['objective_value']:.6g}; one "
        f"row's noise {noise}; {f['bootstrap_method']} bootstrap"
    )


def list_forms(forms: "Mapping[str, Form]", json: bool) -> None:
    """Each declared form with its equation, inputs and source."""
    if json:
        from areca.cli.options import print_json

        print_json([
            {
                "form": f.name, "equation": f.equation, "inputs": list(f.inputs), "response": f.response,
                "parameters": {p.name: p.unit for p in f.parameters}, "domain": f.domain, "source": f.source,
            }
            for f in forms.values()
        ])  # fmt: skip
        return
    for f in forms.values():
        print(f"{f.name}\n    {f.equation}\n    from {', '.join(f.inputs)} to {f.response}; {f.source}")
        if f.domain:
            print(f"    {f.domain}")


def _ends(ends: Any) -> str:
    """`0.32 to 0.37`; an end that has no bound is an infinity."""
    low, high = ("-inf" if ends[0] is None else f"{ends[0]:.4g}"), ("inf" if ends[1] is None else f"{ends[1]:.4g}")
    return f"{low} to {high}"
