"""Time, energy and carbon: of every run, of all of them together, of the plan. Each figure carries its kind."""

from typing import Any

from areca.report import energy as provenance
from areca.report import markup, saves
from areca.report.gather import Gathered
from areca.report.markup import Cell, absent, facts, note, section, table, text
from areca.report.values import an_object, at_least, number, objects, sentences

FIGURES = (
    ("energy_kwh", "energy"),
    ("carbon_kg", "carbon, gross"),
    ("carbon_net_kg", "carbon, net of carbon-free energy bought"),
)


def costs(found: Gathered, summary: dict[str, Any]) -> str:
    """The section: sums with their kinds, each run's figures, the plan's, stages and saves."""
    what = "time, all stages" if (found.quickstart or {}).get("stages") else "training time, all runs"
    entries = [(what, markup.duration(summary["seconds"], summary["seconds_at_least"]))]
    entries += footprint_facts(summary) + provenance.entries(found)
    body = facts(entries)
    energy, carbon = summary["energy_kwh"], summary["carbon_kg"]
    if energy is None:
        body += absent("No run recorded its energy.")
    elif energy["runs_without"]:
        left = markup.count(energy["runs_without"], "run")
        verb = "is" if energy["runs_without"] == 1 else "are"
        body += absent(f"{left} recorded no energy and {verb} not in the sum; `areca footprint` counts such runs.")
    if energy and carbon is None:
        body += absent("No run recorded its carbon.")
    kinds = " ".join(f["kind"] for f in (energy, carbon) if f).lower()
    if "estimat" in kinds or "assumed" in kinds:
        body += note("An estimate is not a measurement: the kind beside each figure says how it came about.")
    body += provenance.notes(found)
    body += _stages(found) + _by_run(found) + saves.costs(found.all_runs)
    if isinstance((found.plan or {}).get("cost"), dict) and found.plan:
        body += "<h3>The planned run, before it was trained</h3>" + facts(footprint_facts(found.plan["cost"]))
    if summary["seconds_at_least"]:
        body += note("Times are summed over all sessions; the last seconds of a session that was killed are not known.")
    return section("costs", "Time, energy and carbon", body)


def footprint_facts(source: dict[str, Any]) -> list[tuple[str, str]]:
    """("energy, measured", "1.2 kWh") and the like of what carries `{"value", "kind"}` under the names of FIGURES."""
    return [
        (f"{words}, {kind(source[key])}", amount(source[key], key))
        for key, words in FIGURES
        if isinstance(source.get(key), dict)
    ]


def kind(figure: dict[str, Any] | None) -> str:
    """How an energy figure came about, such as "estimated (TDP)"; without a value "unknown", with the reason if any."""
    if not figure:
        return "not recorded"
    said = str(figure.get("kind", "kind not recorded"))
    return text("unknown" if number(figure, "value") is None and not said.startswith("unknown") else said)


def amount(figure: dict[str, Any] | None, key: str = "energy_kwh") -> str:
    """An energy in Wh or kWh, a carbon in g or kg of CO2e; "not known" where the value is null."""
    if not figure:
        return markup.NONE
    value = number(figure, "value")
    if value is None:
        return "not known"
    small, large = ("Wh", "kWh") if key == "energy_kwh" else ("g CO<sub>2</sub>e", "kg CO<sub>2</sub>e")
    if abs(value) < 1:
        return f"{markup.significant(1000 * value, 3)} {small}"
    return f"{markup.significant(value, 3)} {large}"


def _by_run(found: Gathered) -> str:
    """A table of what each run drew and emitted, with kinds and where the figures are from."""
    if not any(an_object(run.result, "energy_kwh") or an_object(run.result, "carbon_kg") for run in found.all_runs):
        return ""
    rows: list[list[Cell | str]] = []
    sources: list[str] = []
    net = any(isinstance((run.result or {}).get("carbon_net_kg"), dict) for run in found.all_runs)
    shown = [key for key, _ in FIGURES if net or key != "carbon_net_kg"]
    for run in found.all_runs:
        result = run.result or {}
        cells: list[Cell | str] = [text(run.name), Cell(markup.duration(run.number("seconds")), run.number("seconds"))]
        for key in shown:
            figure = an_object(result, key)
            cells += [Cell(amount(figure, key), number(figure, "value")), kind(figure)]
        sources.append(_sources(result))
        rows.append(cells)
    heads = {"energy_kwh": "energy", "carbon_kg": "carbon", "carbon_net_kg": "carbon, net"}
    headers = ["run", "time", *(h for key in shown for h in (heads[key], "kind"))]
    words = ""
    if len(set(sources) - {""}) > 1:
        headers.append("from")
        for row, source in zip(rows, sources, strict=True):
            row.append(f'<span class="wrap">{text(source) or markup.NONE}</span>')
    elif any(sources):
        words = note(f"From: {text(max(sources))}.")
    shown_rows = table(headers, rows, "Energy and carbon by run", sortable=True)
    return f"<h3>Energy and carbon of each run</h3>{shown_rows}{words}"


def _sources(result: dict[str, Any]) -> str:
    """Where a run's figures are from, and the gaps in them."""
    energy, grid = an_object(result, "energy_kwh"), an_object(an_object(result, "carbon_kg"), "grid")
    found = [s for s in (energy.get("source"), grid.get("source")) if isinstance(s, str) and s]
    return "; ".join(found + sentences(energy.get("gaps")))


def _stages(found: Gathered) -> str:
    stages = objects((found.quickstart or {}).get("stages"))
    known = [(text(s.get("name", "?")), number(s, "seconds"), at_least(s)) for s in stages]
    longest = max((s for _, s, _ in known if s), default=None)
    if not longest:
        return ""
    rows = [[name, markup.duration(s, more), markup.bar((s or 0) / longest)] for name, s, more in known]
    return table(["stage", "time", ""], rows, "Time by stage")
