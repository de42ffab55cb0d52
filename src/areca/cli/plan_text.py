"""A plan as a person reads it."""

from typing import TYPE_CHECKING, Any

from areca.cli.tables import plain_table, wide_console
from areca.cli.units import byte_size, compact
from areca.counted import WORDS

if TYPE_CHECKING:
    from areca.plan import Candidate, Plan


def print_plan(p: "Plan") -> None:
    """The run, its loss, its neighbours, what it costs, and what to know of it."""

    console = wide_console()
    s, best = p.best.shape, p.best
    console.print(
        f"[bold]{best.n_params:,} parameters on {best.n_tokens:,} tokens[/bold]: {s['n_layers']} layers of D "
        f"{s['d_model']}, {s['n_heads']} heads, {best.steps:,} steps of {_batch(p)} tokens"
    )
    console.print(_loss(p))
    console.print(_neighbours(p))
    low, high = p.flat_range
    which = " without embeddings" if p.law["n_counts"] == "total" else ""
    console.print(f"within 0.1% of the best predicted loss: N{which} from {low:,} to {high:,}")
    if p.baseline:
        console.print(f"{p.baseline['rule']}: {p.baseline['loss']:.4f} ({p.baseline['label']})")
    if p.choice:
        console.print(_choice(p))
    for line in _from(p):
        console.print(line)
    if p.recipe:
        _recipe(console, p.recipe)
    if p.cost:
        for line in _cost(p.cost):
            console.print(line)
    if p.memory:
        console.print(_memory(p.memory))
    for warning in p.warnings:
        console.print(f"note: {warning}", style="yellow")


def _batch(p: "Plan") -> str:
    if len(p.ramp) < 2:
        return f"{p.batch} x {p.context}"
    return f"{p.ramp[0][1]} to {p.batch} x {p.context}"


def _loss(p: "Plan") -> str:
    said = f"predicted loss [bold]{p.predicted_loss:.4f}[/bold] nats a token, "
    if p.interval is None or p.half_width_relative is None:
        return f"{said}no interval ({p.law['no_interval']})"
    low, high = p.interval
    return f"{said}{p.level:.0%} of such runs in {low:.4f} to {high:.4f} (half-width {p.half_width_relative:.2%})"


def _neighbours(p: "Plan") -> Any:
    counts = size_columns(p.law)
    table = plain_table("", *counts, "D", "D / N", "exact FLOPs", "6 N D", "loss", "")

    def row(name: str, c: "Candidate") -> None:
        sizes = (c.n_params, c.n_params_total)[: len(counts)]
        cells = (*map(_size, sizes), _size(c.n_tokens), f"{c.tokens_per_param:.3g}")
        same = c is p.best or (p.choice or {}).get("rule") == "inference"  # those all reach one loss
        change = "" if same else f"{c.predicted_loss / p.predicted_loss - 1:+.2%}"
        table.add_row(name, *cells, f"{c.flops_exact:.4g}", f"{c.flops_6nd:.4g}", f"{c.predicted_loss:.4f}", change)

    rows = [("half", p.neighbours.get("half")), ("best", p.best), ("double", p.neighbours.get("double"))]
    for name, c in rows:
        if c is not None:
            row("chosen" if c is p.best and p.choice else name, c)
    return table


def _choice(p: "Plan") -> str:
    c = p.choice or {}
    o = c["optimum"]
    if c["rule"] == "inference":
        return (
            f"to serve {_size(c['inference_tokens'])} tokens at a loss of {c['loss']:.4f}: {c['training_flops']:.3g} "
            f"FLOPs to train and {c['inference_flops']:.3g} to serve, {c['saved']:.1%} less in all than the run of "
            f"least training ({_size(o['n_params'])} parameters on {_size(o['n_tokens'])} tokens)"
        )
    how = f"{c['factor']:.3g} times its tokens a parameter" if c["rule"] == "over-train" else ""
    how = how or f"stops {c['excess']:.1%} above its converged loss"
    return (
        f"{how}: the loss is {c['loss_penalty']:+.2%} against the best run of this budget, {_size(o['n_params'])} "
        f"parameters on {_size(o['n_tokens'])} tokens ({o['predicted_loss']:.4f})"
    )


def _from(p: "Plan") -> list[str]:
    lines = [f"budget: {p.budget_words or f'{p.budget_flops:.4g} exact FLOPs'}"]
    if p.choice and p.choice["rule"] == "inference":
        lines[0] += (
            f"; this run, chosen for its service at {p.choice['loss']:.4f}, takes {p.best.flops_exact:.4g} to train"
        )
    lines.append(law_words(p.law, p.best.n_params, p.best.n_params_total))
    if p.learning_rate:
        lines.append(f"learning rate: {p.learning_rate['value']:.4g}, {p.learning_rate['source']}")
    if len(p.ramp) > 1:
        rows = [f"{size} from {_size(start)}" if start else str(size) for start, size in p.ramp]
        lines.append(f"sequences a step: {', '.join(rows)} tokens")
    if p.unique_tokens:
        lines.append(
            f"{_size(p.unique_tokens)} unique tokens, read {max(1.0, p.best.n_tokens / p.unique_tokens):.3g} times"
        )
    return lines


def law_words(law: dict[str, Any], n_params: float, n_params_total: float) -> str:
    """Which law it is, and what its N is of a run with these sizes."""
    here = n_params_total if law["n_counts"] == "total" else n_params
    return f"law: {law['name']}, {law['source']}; N counts {WORDS[law['n_counts']]} ({_size(here)} here)"


def size_columns(law: dict[str, Any]) -> tuple[str, ...]:
    """The heads of a table's sizes: N without embeddings, and where the law counts all parameters those too."""
    return ("N", "all N") if law["n_counts"] == "total" else ("N",)


def _recipe(console: Any, r: dict[str, Any]) -> None:
    console.print(f"Kaplan's recipe for {r['pf_days']:.3g} PF-days (6 N D) at the critical batch, C_min half of it:")
    table = plain_table("", "N", "D", "batch", "steps", "S_min", "loss")
    for which in ("fitted", "derived"):
        x = r[which]
        figures = [_size(x[k]) for k in ("n_params", "n_tokens", "batch_tokens", "steps", "s_min")]
        table.add_row(f"  {which}", *figures, f"{x['loss']:.4f}")
    console.print(table)
    console.print(f"  fitted: {r['fitted']['source']}; derived: {r['derived']['source']}, numerically")
    for b in r["breakdown"]:
        console.print(
            f"  L(C_min) meets L(D) at {b['pf_days']:.2g} PF-days (N {b['n_params']:.2g}, D {b['n_tokens']:.2g}, loss "
            f"{b['loss']:.2f}) with D by {b['curve']}: from there the laws contradict each other"
        )


def _cost(cost: dict[str, Any]) -> list[str]:
    used, energy, carbon = used_words(cost), cost["energy_kwh"], cost["carbon_kg"]
    if "chip" not in cost:
        minutes, speed = cost["seconds"] / 60, cost["flops_per_second"]
        return [f"about {minutes:.3g} minutes at the {speed:.3g} FLOP/s of {cost['of']}, {used}"]
    wall = f", {_amount(cost['hours'])} hours on {cost['chips']:,}" if cost["hours"] is not None else ""
    money = f", {_amount(cost['usd'])} USD" if cost["usd"] is not None else ""
    lines = [
        f"{_amount(cost['chip_hours'])} chip-hours of {cost['chip']}{wall}{money}, at an MFU of {cost['mfu']:.1%}, "
        f"{cost['mfu_source']}",
        f"energy and carbon: {used}",
    ]
    if "source" in energy:
        grid = carbon["grid"]
        intensity = "" if grid["kg_per_kwh"] is None else f"{grid['kg_per_kwh']:g} kg a kWh, "
        lines.append(f"  {energy['source']}; {intensity}{grid['source']}")
    return lines


def used_words(cost: dict[str, Any]) -> str:
    """Energy and gross carbon of a plan's cost, each with its kind; what is not known has its kind alone."""
    energy, carbon = cost["energy_kwh"], cost["carbon_kg"]
    if energy["value"] is None:
        return energy["kind"]
    emitted = "carbon" if carbon["value"] is None else f"{_amount(carbon['value'])} kg CO2e,"
    return f"{_amount(energy['value'])} kWh, {energy['kind']}; {emitted} {carbon['kind']}"


def _memory(m: dict[str, Any]) -> str:
    need = m["bytes_per_chip"]
    state = need["parameters"] + need["optimizer"]
    mesh = f"{m['mesh']['data']} x {m['mesh']['model']} (data x model)"
    if f := m["fits"]:
        verdict = {True: "it fits", False: "it does NOT fit", None: "it may fit"}[f["fits"]]
        about = f"about {byte_size(f['needed_estimate'])}, " if f["needed_estimate"] else ""
        return (
            f"dry run on {mesh}, {m['batch']} sequences, remat {m['remat']}: {verdict} in {byte_size(f['memory'])} a "
            f"chip ({about}at most {byte_size(f['needed_at_most'])})"
        )
    most = byte_size(state + need["temporaries_at_most"])
    return f"dry run on {mesh}, {m['batch']} sequences, remat {m['remat']}: at most {most} a chip; no --chip to fit in"


def _size(value: float) -> str:
    return compact(value, figures=4)


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
