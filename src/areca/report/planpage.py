"""The sections about what comes next: a plan with its neighbours and costs, a design of further runs."""

from typing import Any

from areca.report import markup
from areca.report.costs import footprint_facts
from areca.report.figures import plans
from areca.report.law import Law
from areca.report.markup import Cell, absent, facts, note, percent, power, section, si, table, text
from areca.report.origin import Origin, loss_here
from areca.report.values import an_object, ends, number, pair, positive, sentences
from areca.report.view import View

PLAN_NOTE = (
    "Predicted loss of the plan's compute spent on other sizes. The thick bar is every size within 0.1% of the best: "
    "inside it, choose by what else matters (memory, serving, what shards well)."
)
DESIGN_NOTE = "The runs there are, those that would narrow the prediction of the target the most for their FLOPs."
NAMES = {"half": "half the size", "best": "planned", "double": "double the size"}


def plan_part(view: View) -> list[tuple[str, str]]:
    """The plan; nothing where there is none, but in a page about files alone, which says so."""
    plan = view.found.plan
    if plan is None:
        if view.found.kind == "law" and view.law is not None and view.law.of_sizes:
            said = absent("No plan was given; write one with areca plan (--out plan.json) and name it beside the law.")
            return [("Plan", section("plan", "Plan", said))]
        return []
    law = view.law if view.origin and view.origin.here else None
    drawn = view.place(
        "plot-plan", "Predicted loss against size at the plan's compute", plans.valley(law, plan),
        "The plan has no sizes and losses to draw.", PLAN_NOTE, 400,
    )  # fmt: skip
    warnings = [text(w) for w in sentences(plan.get("warnings"))]
    told = f'<ul class="warnings">{"".join(f"<li>{w}</li>" for w in warnings)}</ul>' if warnings else ""
    said = _said(view.origin)
    return [("Plan", section("plan", "Plan", said, _plan_facts(plan, view), drawn, _members(plan), _costs(plan), told))]


def _said(origin: Origin | None) -> str:
    return absent(origin.said) if origin and origin.said else ""


def _law_facts(origin: Origin | None, law: Law | None, value: dict[str, Any]) -> list[tuple[str, str]]:
    """Which law a plan or a design is of; where it is another than the page's, what that one predicts in its place."""
    if origin is None:
        return []
    entries = [("law", text(origin.name) if origin.name else "not said")]
    if origin.apart and (loss := loss_here(law, value)):
        entries.append(("this page's law at its N and D", markup.fixed(loss, 4)))
    return entries


def _plan_facts(plan: dict[str, Any], view: View) -> str:
    bounds, flat = ends(plan.get("interval_90")), pair(plan.get("flat_range"))
    level = number(plan, "level") or 0.90
    entries = [
        *_law_facts(view.origin, view.law, plan),
        ("N, without embeddings", si(positive(plan, "n_params"))),
        *_counted(plan),
        ("D, tokens", si(positive(plan, "n_tokens"))),
        ("compute, exact FLOPs", power(positive(plan, "flops_exact") or positive(plan, "budget_flops"))),
        ("predicted loss, nats per token", markup.fixed(positive(plan, "predicted_loss"), 4)),
    ]
    if bounds:
        entries.append((f"{level:.0%} interval of one such run", markup.interval(bounds)))
    shape = an_object(an_object(plan, "best"), "shape") or an_object(plan, "config")
    if shape:
        known = (("n_layers", "{} layers"), ("d_model", "D {}"), ("n_heads", "{} heads"), ("d_ff", "F {}"))
        words = [form.format(f"{v:g}") for key, form in known if (v := number(shape, key)) is not None]
        entries.append(("shape", ", ".join(words) or markup.NONE))
    steps, batch, context = (positive(plan, key) for key in ("steps", "batch", "context"))
    if steps and batch and context:
        entries.append(("steps", f"{steps:,.0f} of {batch:g} × {context:g} tokens"))
    if flat:
        entries.append(("N within 0.1% of the best", f"{si(flat[0])} to {si(flat[1])}"))
    target = positive(plan, "target_loss")
    if target:
        entries.append(("target loss, and its probability", f"{target:g}, {percent(number(plan, 'probability'), 0)}"))
    beyond = an_object(plan, "extrapolation")
    for key, words in (("flops", "compute over the largest fitted"), ("n_tokens", "D over the largest fitted")):
        factor = positive(beyond, key)
        if key == "flops" and view.law and view.plan and view.points:  # both as the law's rows count
            factor = (view.law.flops_of(plan) or 0.0) / max(p.flops for p in view.points)
        if factor and factor > 1:
            entries.append((words, f"{factor:.3g} times"))
    baseline = an_object(plan, "baseline")
    if positive(baseline, "loss"):
        shown = f"{markup.fixed(positive(baseline, 'loss'), 4)} ({text(baseline.get('label', ''))})"
        entries.append((text(baseline.get("rule", "best run carried over")), shown))
    return facts(entries)


def _counted(plan: dict[str, Any]) -> list[tuple[str, str]]:
    """N as the plan's law counts it, where that is of all parameters."""
    total = positive(plan, "n_params_total")
    if not total or an_object(plan, "law").get("n_counts") != "total":
        return []
    return [("N as its law counts it, embeddings included", si(total))]


def _members(plan: dict[str, Any]) -> str:
    runs = plans.members(plan)
    if not runs:
        return ""
    best = positive(plan, "predicted_loss")
    rows: list[list[Cell | str]] = []
    for name, run in runs:
        n, d, loss = (positive(run, key) for key in ("n_params", "n_tokens", "predicted_loss"))
        flops, by_6nd = positive(run, "flops_exact"), positive(run, "flops_6nd")
        more = loss / best - 1 if loss and best else None
        ratio = d / n if n and d else None
        cells = [Cell(si(n), n), Cell(si(d), d), Cell(markup.significant(ratio, 3), ratio)]
        cells += [Cell(power(flops), flops), Cell(power(by_6nd), by_6nd), Cell(markup.fixed(loss, 4), loss)]
        rows.append([NAMES[name], *cells, percent(more, 2, sign=True) if name != "best" else markup.NONE])
    headers = ["", "N", "D", "D / N", "exact FLOPs", "6ND FLOPs", "predicted loss", "over the plan's"]
    said = "" if len(runs) > 1 else note("The plan has no neighbours of half and double the size.")
    return table(headers, rows, "The plan and its neighbours") + said


def _costs(plan: dict[str, Any]) -> str:
    """Time, money, energy and carbon, each with its tag."""
    cost = plan.get("cost")
    if not isinstance(cost, dict):
        return absent("The plan has no costs; a plan on named chips, or of run directories, has them.")
    entries: list[tuple[str, str]] = []
    hours = positive(cost, "hours")
    seconds = positive(cost, "seconds") or (3600 * hours if hours else None)
    if seconds:
        of = f", at the speed of {text(cost['of'])}" if isinstance(cost.get("of"), str) else ""
        entries.append((f"time{of}", markup.duration(seconds)))
    if isinstance(cost.get("chip"), str):
        chips, mfu = positive(cost, "chips"), positive(cost, "mfu")
        on = f"{chips:,.0f} × {text(cost['chip'])}" if chips else text(cost["chip"])
        entries.append(("on", on + (f" at MFU {percent(mfu, 0)}" if mfu else "")))
    if positive(cost, "chip_hours"):
        entries.append(("chip-hours", markup.significant(positive(cost, "chip_hours"), 3)))
    if positive(cost, "usd"):
        entries.append(("money", f"{markup.significant(positive(cost, 'usd'), 3)} USD"))
    return "<h3>What it costs</h3>" + facts(entries + footprint_facts(cost))


def design_part(view: View) -> list[tuple[str, str]]:
    """The runs to add, if a design was given."""
    found = view.found.design
    if found is None:
        return []
    origin = view.design_origin
    # Rows of another law were not what the design had, and N in another count is no N of its axis.
    size = plans.size_key(found)
    same = view.law is None or view.law.counts_embeddings == (size == "n_params_total")
    there = view.points if same and not (origin and origin.apart) else []
    drawn = view.place(
        "plot-design", "Runs there are, proposed runs and the target", plans.design(there, found),
        "The design has no runs to draw.", DESIGN_NOTE, 400,
    )  # fmt: skip
    rows: list[list[Cell | str]] = []
    for i, run in enumerate(plans.runs_of(found, "proposed"), 1):
        n, d, flops, loss, steps = (
            positive(run, key) for key in (size, "n_tokens", "flops_exact", "predicted_loss", "steps")
        )
        cells = [Cell(si(n), n), Cell(si(d), d), Cell(f"{steps:,.0f}" if steps else markup.NONE, steps)]
        rows.append([str(i), *cells, Cell(power(flops), flops), Cell(markup.fixed(loss, 4), loss)])
    which = ", embeddings included" if size == "n_params_total" else ", without embeddings"
    headers = ["run to add", f"N{which}", "D", "steps", "exact FLOPs", "predicted loss"]
    proposed = table(headers, rows, "Runs to add") if rows else absent("The design proposes no runs.")
    now = number(found, "half_width_relative")
    compared: list[list[Cell | str]] = [["now", markup.NONE, markup.NONE, percent(now, 2)]]
    for key, name in (("proposed", "proposed"), ("next_rung", "the plain next rung"),
                      ("at_the_rungs_cost", "proposed for the rung's FLOPs")):  # fmt: skip
        part = an_object(found, key)
        if part:
            width = percent(number(part, "half_width_relative"), 2)
            compared.append([name, str(len(plans.runs_of(found, key))), power(positive(part, "flops")), width])
    entries = [
        *_law_facts(origin, view.law, found),
        (f"target, N{which}", si(positive(found, size))), ("target, D", si(positive(found, "n_tokens"))),
        ("predicted loss", markup.fixed(positive(found, "predicted_loss"), 4)),
        ("its interval", markup.interval(ends(found.get("interval")))),
        ("allowance, exact FLOPs", power(positive(found, "allowance"))),
        ("half-width that one run's noise leaves", percent(number(found, "noise_half_width"), 2)),
    ]  # fmt: skip
    widths = table(["", "runs", "FLOPs", "half-width expected"], compared, "What the runs are worth")
    warnings = [text(w) for w in sentences(found.get("warnings"))]
    told = f'<ul class="warnings">{"".join(f"<li>{w}</li>" for w in warnings)}</ul>' if warnings else ""
    return [("Design", section("design", "Runs to add", _said(origin), facts(entries), drawn, proposed, widths, told))]
