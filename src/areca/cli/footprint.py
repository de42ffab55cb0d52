"""`areca footprint`: energy and carbon of a run, a study, a plan or a published run."""

from typing import Any

from areca.cli.tables import plain_table, wide_console
from areca.cli.units import counted


def run(argv: list[str]) -> int:
    """Parses and runs `areca footprint`."""
    from areca.cli.options import call

    return call(footprint, argv, "areca footprint")


def footprint(
    target: str = "",
    /,
    *,
    region: str = "",
    pue: float | None = None,
    what_if: str | None = None,
    plot: str = "",
    intensity: str = "",
    hours: float | None = None,
    embodied: str = "",
    card: bool = False,
    json: bool = False,
) -> int:
    """Energy and carbon of a run, a study, a plan or a published run, each figure tagged by how it is known.

    TARGET is a run, a ladder, a quickstart or any directory of runs (all are summed, failed ones too), a result.json, a
    plan.json, or published:NAME such as published:palm-540b. Gross carbon is the grid's, net leaves out carbon-free
    energy bought; they are never mixed.

    Example: areca footprint runs/first --what-if region=iowa,chip=tpu-v4,pue=1.1 --plot levers.svg

    Args:
        target: what to count.
        region: where it ran, instead of what was recorded: iowa, france, us-central1; list prints all.
        pue: of the building it ran in, instead of what was recorded.
        what_if: levers to pull, such as region=iowa,chip=h200,pue=1.1; also flops, watts, tflops, mfu, gross and net.
        plot: with --what-if: draw the levers as a waterfall into this .svg or .png file.
        intensity: a CSV table of region, hour (or timestamp) and kg_per_kwh (or g_per_kwh): print the cheapest start.
        hours: with --intensity: length of the window; the run's own if not given.
        embodied: add carbon of making the chips, as kg_per_chip,lifetime_years,utilisation; kept apart.
        card: print a block in Markdown for a model card.
        json: print everything as JSON.
    """
    from areca.cli.options import print_json
    from areca.errors import ConfigError
    from areca.footprint.answer import answer
    from areca.footprint.cases import PREFIX, published_names

    if region == "list":
        from areca.footprint.regions import listing

        rows = listing()
        print_json(rows) if json else _print_regions(rows)
        return 0
    if not target:
        raise ConfigError("TARGET is missing; name a run, a directory of runs, a plan.json or published:NAME.")
    if target == f"{PREFIX}list":
        print_json(published_names()) if json else print("\n".join(PREFIX + name for name in published_names()))
        return 0
    if plot:
        from areca.files import check_output
        from areca.footprint.waterfall import check_plot

        check_plot(plot)
        check_output("--plot", plot, filter(None, (target, intensity)))
        if not what_if:
            raise ConfigError("--plot draws what levers do; give --what-if with it.")
    found = answer(target, region=region, pue=pue, what_if=what_if, embodied=embodied, intensity=intensity, hours=hours)
    if plot:
        from areca.footprint.waterfall import waterfall

        waterfall(found["what_if"], plot)
    if json:
        print_json(found)
    elif card:
        if found["card"] is None:
            raise ConfigError("the runs were in different places; give --region and --pue for one card of all.")
        print(found["card"])
    else:
        _print(found)
        if plot:
            print(f"written: {plot}")
    return 0


def _print(found: dict[str, Any]) -> None:
    from areca.footprint.card import how, quantity

    console = wide_console()
    energy = found["footprint"]["energy_kwh"]
    several = found.get("places") == "several"
    where = "in several places" if several else f"PUE {found['run']['pue']:g}"
    if energy["value"] is None:
        console.print(f"energy: [bold]not known[/bold]{_why(energy)}; {where}")
    else:
        console.print(f"[bold]{quantity(energy['value'], 'kWh')}[/bold], {how(energy)}; {where}")
    for name, basis in (("carbon_kg", "gross"), ("carbon_net_kg", "net")):
        carbon = found["footprint"].get(name)
        if carbon is None:
            continue
        if carbon["value"] is None:
            console.print(f"{basis} carbon: [bold]not known[/bold]{_why(carbon)}")
        else:
            console.print(f"[bold]{quantity(carbon['value'], 'kg CO2e')}[/bold] {basis}, {how(carbon)}")
    if not several:
        grid = found["run"]["grid"]
        console.print(f"grid: {grid['source']}{', ' + grid['year'] if 'year' in grid else ''}")
    if energy.get("source"):
        console.print(f"energy: {energy['source']}")
    if "ended" in found and found["of"] == "study":
        said = ", ".join(f"{n} {how}" for how, n in found["ended"].items())
        console.print(f"{counted(sum(found['ended'].values()), 'run')}: {said}")
        table = plain_table("run", "ended", "hours", "energy", "kind")
        for r in found["runs"]:
            used = r["energy_kwh"]
            hours = "" if r["hours"] is None else f"{r['hours']:.4g}"
            table.add_row(r["name"], r["ended"], hours, quantity(used["value"], "kWh"), used["kind"])
        console.print(table)
    for gap in energy.get("gaps", []):
        console.print(f"note: {gap}", style="yellow")
    if "embodied_kg" in found:
        made = found["embodied_kg"]
        console.print(f"embodied, apart: {quantity(made['value'], 'kg CO2e')}, {made['kind']} ({made['source']})")
    if "what_if" in found:
        _print_levers(console, found["what_if"])
    if "when" in found:
        _print_windows(console, found["when"])


def _why(figure: dict[str, Any]) -> str:
    from areca.footprint.card import how

    return f" ({how(figure)})" if how(figure) else ""


def _print_levers(console: Any, found: dict[str, Any]) -> None:
    from areca.footprint.card import quantity

    def times(value: float | None) -> str:
        return "" if value is None else f"{value:.3g}x"

    table = plain_table("lever", "change", "less energy", "less gross", "less net")
    for x in found["levers"]:
        table.add_row(
            x["lever"], x["change"], times(x["energy_factor"]), times(x["carbon_factor"]), times(x["carbon_net_factor"])
        )
    table.add_row("all", "", *(times(found[k]) for k in ("energy_factor", "carbon_factor", "carbon_net_factor")))
    console.print(table)
    table = plain_table("", "energy", "gross", "net")
    for name in ("before", "after"):
        f = found[name]
        carbon = [quantity(f[k]["value"], "kg CO2e") if k in f else "" for k in ("carbon_kg", "carbon_net_kg")]
        table.add_row(name, quantity(f["energy_kwh"]["value"], "kWh"), *carbon)
    console.print(table)


def _print_windows(console: Any, found: dict[str, Any]) -> None:
    from areca.footprint.card import quantity

    best = found["best"]
    saves = (
        f", {1 - best['kg_per_kwh'] / best['mean_kg_per_kwh']:.0%} below its mean" if best["mean_kg_per_kwh"] else ""
    )
    window = f"{best['region']} from {best['start']} for {best['hours']:.3g} h"
    console.print(f"cheapest: {window} at {best['kg_per_kwh']:.3g} kg/kWh{saves}")
    table = plain_table("region", "start", "kg/kWh", "mean", "worst", "gross")
    for w in found["windows"]:
        figures = [f"{w[k]:.3g}" for k in ("kg_per_kwh", "mean_kg_per_kwh", "worst_kg_per_kwh")]
        table.add_row(w["region"], w["start"], *figures, quantity(w["carbon_kg"], "kg CO2e"))
    console.print(table)


def _print_regions(rows: list[dict[str, Any]]) -> None:
    from areca.footprint import maintained

    width = max(len(r["region"]) for r in rows)
    print(f"{'region':<{width}}  gross  net    (kg CO2e per kWh)")
    for r in rows:
        gross, net = (f"{'':5}" if r[k] is None else f"{r[k]:.3f}" for k in ("gross", "net"))
        about = ", ".join(filter(None, (r.get("name", ""), r["year"], r["source"])))
        print(f"{r['region']:<{width}}  {gross}  {net}  {about}")
    if not maintained.installed():
        print(f"{maintained.EXTRA} adds countries, states and cloud regions.")
