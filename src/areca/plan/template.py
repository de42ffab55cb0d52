"""The runs behind a law: what a plan takes from them that the law does not decide.

The template is the observed run of lowest loss: its optimizer, schedule, batch, order and threads, and how well it used
its machine. Where all runs follow a rule that gives rate and batch for a run's length, the planned run follows it too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from areca.chips import Chip, for_device_kind
from areca.config import RunConfig, from_dict
from areca.errors import DataError
from areca.files import read_json
from areca.footprint import GridIntensity, tagged
from areca.footprint.regions import PUE, given_here
from areca.laws import LawReport, fit_laws, load
from areca.laws.published import LAWS
from areca.laws.reading.sweeps import best_rates
from areca.laws.reading.tables import run_directories
from areca.model.config import ModelConfig
from areca.plan.shapes import WIDTH_STEP, family, interpolate


class Rule(Protocol):
    """How rate and batch depend on a run, such as `areca.study.recipe`."""

    def follows(self, config: RunConfig) -> bool:
        """Whether a run was made by this rule."""
        ...

    def learning_rate(self, steps: int) -> float: ...
    def batch_sequences(self, model: ModelConfig, flops: float, context: int) -> int: ...


@dataclass(frozen=True)
class Template:
    """What the runs behind a law were."""

    config: RunConfig  # of the run of lowest loss
    result: dict[str, Any]  # its result.json
    name: str
    configs: list[RunConfig]  # of all the runs
    device_kind: str = ""  # what jax called its device

    @property
    def shapes(self) -> list[ModelConfig]:
        return [c.model for c in self.configs]

    def made_by(self, rule: Rule | None) -> bool:
        return rule is not None and all(rule.follows(c) for c in self.configs)

    @property
    def observed(self) -> tuple[Chip, float, str] | None:
        """(chip, MFU, name of the run) where it ran on a chip that is known and its MFU is."""
        found, mfu = for_device_kind(self.device_kind), self.result.get("mfu")
        return (found, float(mfu), self.name) if found and isinstance(mfu, int | float) and 0 < mfu <= 1 else None


def find_template(sources: Iterable[Path | str]) -> Template | None:
    """The template among run directories, ladders and directories of runs; None where there is no run (tables only)."""
    found = []
    for source in map(Path, sources):
        if not source.is_dir():
            continue
        for path, _ in best_rates(run_directories(source)[0])[0]:
            if not (path / "run.json").exists():
                continue
            try:
                values = read_json(path / "run.json")
                config = from_dict(values["config"], where=f"{path / 'run.json'}: config")
                device = str(values.get("topology", {}).get("device_kind", ""))
                found.append((float(read_json(path / "result.json")["loss"]), path, config, device))
            except (KeyError, TypeError, ValueError):
                raise DataError(
                    f"{path} does not hold a run of Areca's (run.json, result.json); leave it out."
                ) from None
    if not found:
        return None
    _, path, config, device = min(found, key=lambda item: item[0])
    return Template(config, read_json(path / "result.json"), path.name, [c for _, _, c, _ in found], device)


def shapes_for(template: Template | None, vocab_size: int, mesh: tuple[int, int] = (1, 1)) -> list[ModelConfig]:
    """The family to choose from: the runs' own shapes, continued, or Areca's for a vocabulary.

    Where no run says otherwise the parametrization is PaLM's at every width, as the rate will be (`runconfig`).
    """
    if template is None:
        return family(vocab_size, like=ModelConfig(vocab_size, WIDTH_STEP, 1, 1, base_width=0), mesh=mesh)
    if vocab_size == template.config.model.vocab_size:
        return interpolate(template.shapes, vocab_size, mesh)
    return family(vocab_size, like=template.config.model, mesh=mesh)


def names_published(law: Path | str) -> bool:
    """Whether `law` is a published law's name, or a word that can only be meant as one. A file counts before a name."""
    path = Path(law)
    return not path.exists() and (str(law) in LAWS or (not path.suffix and len(path.parts) == 1))


def unmarked(values: dict[str, Any], path: Path) -> list[str]:
    """What to say of a law.json without a fingerprint, as older versions wrote it."""
    if values.get("fingerprint") is not None:
        return []
    return [f"{path} bears no fingerprint, so it can't be told whether its values were changed after the fit."]


def read_law(law: Path | str) -> tuple[LawReport, Template | None, list[str]]:
    """(the law of a law.json or fitted to runs, the template among its runs, what was said of runs fitted here)."""
    path = Path(law)
    if path.is_file() and path.suffix == ".json" and not isinstance(values := read_json(path), list):
        report, taken = LawReport.from_dict(values, str(path)), unmarked(values, path)
        sources = [path.parent / source for source in report.sources]
    else:
        observations = load([path], fit_first=True)
        report, taken, sources = fit_laws(observations), list(observations.notes), [path]
    return report, find_template(s for s in sources if s.exists()), taken


def cost_at(template: Template | None, flops: float) -> dict[str, Any] | None:
    """Seconds, energy and carbon of `flops` at the template's observed speed and power; None where it has none."""
    if template is None:
        return None
    result = template.result
    try:
        speed = result["flops_exact"] / result["seconds"]
        energy = result["energy_kwh"]
        here, pue = given_here()
        grid = here or GridIntensity(**result["carbon_kg"]["grid"])
        # The run's energy is also that of compiling and evaluating, which a longer run does not do as often.
        kwh = energy["value"] * energy.get("training_share", 1.0) * flops / result["flops_exact"]
        kind = energy["kind"]
        if kind == "measured":
            kind = "estimated (from the measured power of a smaller run)"
        source = f"{template.name}: {energy['source']}"
        if pue is not None:
            kwh, source = kwh / energy["pue"] * pue, f"{source}; PUE {pue:g} given in {PUE}"
        pue = energy["pue"] if pue is None else pue
        footprint = tagged(kwh, kind=kind, watts=energy["watts"], source=source, pue=pue, grid=grid)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    return {"seconds": flops / speed, "flops_per_second": speed, "of": template.name, **footprint}
