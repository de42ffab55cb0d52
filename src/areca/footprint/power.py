"""What a chip draws: the measured averages of the papers where there are any, else its maker's TDP, tagged as such.

An average is of the chip with its share of the host, memory and network while it trains (Patterson et al. 2021, table
3); a TDP is the board alone at its limit.
"""

from dataclasses import dataclass

from areca import chips
from areca.errors import ConfigError, closest
from areca.footprint.cpus import cpu_watts

_T3 = "Patterson et al. 2021, table 3, average over training runs"
_PALM = "Chowdhery et al. 2022, appendix B"
TDP_KIND, AVERAGE_KIND = "estimated (TDP)", "estimated (published average)"


@dataclass(frozen=True)
class ChipPower:
    """Watts of one chip, system share included where `kind` is of a published average."""

    name: str
    watts: float
    kind: str
    source: str
    spread: float | None = None  # standard deviation, as a fraction


AVERAGES: dict[str, ChipPower] = {
    "tpu-v2": ChipPower("tpu-v2", 221.0, AVERAGE_KIND, _T3, 0.05),
    "tpu-v3": ChipPower("tpu-v3", 283.0, AVERAGE_KIND, _T3, 0.10),
    "p100": ChipPower("p100", 271.0, AVERAGE_KIND, _T3, 0.11),
    "v100": ChipPower("v100", 325.0, AVERAGE_KIND, _T3, 0.02),
    "tpu-v4": ChipPower("tpu-v4", 378.5, AVERAGE_KIND, f"PaLM, {_PALM}"),
}

# FLOP/s a chip reached in a published training run: its FLOPs over its chip-seconds, whatever it waited for.
ACHIEVED: dict[str, tuple[float, str]] = {
    "p100": (6.7e12, "Transformer Big, Patterson et al. 2021, table 1"),
    "tpu-v2": (28.8e12, "Transformer Big, Patterson et al. 2021, table 1"),
    "tpu-v3": (45.6e12, "T5, Patterson et al. 2021, table 4"),
    "v100": (24.6e12, "GPT-3, Patterson et al. 2021, table 4"),
    "tpu-v4": (84.6e12, "PaLM 540B, 2.56e24 FLOPs in 8.40M chip-hours, Chowdhery et al. 2022, appendix B"),
}


def chip_power(name: str) -> ChipPower:
    """Watts of a chip by its name or its file; ConfigError for one that is not known or has no published figure."""
    key = key_of(name)
    if key in AVERAGES:
        return AVERAGES[key]
    try:
        chip = chips.chip(name)
    except ConfigError:
        if name.endswith((".toml", ".json")):
            raise
        names = [*AVERAGES, *chips.CHIPS]
        raise ConfigError(
            f"there is no chip {name!r}{closest(key, names)}; name one of {', '.join(dict.fromkeys(names))}, or a TOML "
            "or JSON file that describes yours."
        ) from None
    if chip.name in AVERAGES:
        return AVERAGES[chip.name]
    if chip.tdp_watts is None:
        raise ConfigError(
            f"no power is published for {chip.name} ({chip.sources.get('tdp_watts', 'none given')}); give its average "
            "system watts."
        )
    return ChipPower(
        chip.name, chip.tdp_watts, TDP_KIND, f"TDP of {chip.name}, {chip.sources.get('tdp_watts', 'as given')}"
    )


def key_of(name: str) -> str:
    """A chip's name as the tables here spell it: TPUv3 and "TPU v3" are tpu-v3."""
    key = "-".join(name.lower().replace("_", " ").split())
    return f"tpu-v{key[4:]}" if key.startswith("tpuv") else key


def expected(
    backend: str, device_kind: str, devices: int, cores: float, processor: str
) -> dict[str, dict[str, object]]:
    """What a run is taken to draw where no sensor tells, by place ("cpu" or "chips"): watts, kind, source.

    On a CPU only the cores in use. On accelerators the chips; watts None, with the reason, where nothing is published.
    """
    if backend == "cpu":
        cpu = cpu_watts(processor)
        return {"cpu": {"watts": cores * cpu.watts_per_core, "kind": cpu.kind, "source": cpu.source}}
    try:
        chip = chip_power(device_kind)
    except ConfigError:
        return {"chips": {"watts": None, "kind": "unknown", "source": f"no power is published for {device_kind}"}}
    return {"chips": {"watts": devices * chip.watts, "kind": chip.kind, "source": f"{chip.source}; no sensor was read"}}
