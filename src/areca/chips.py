"""What accelerators can do, from their makers' pages: peak FLOP/s, memory, links and power. Importable without jax.

Every figure is dense (no structured sparsity), of one chip, in base units: FLOP/s, bytes, bytes per second in ONE
direction (data sheets print both directions of NVLink and of ICI together; half of that is here), watts. A figure that
was not published is None and `sources` says so: it is never filled in from another chip. A device that is not in the
table is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from areca.errors import ConfigError, closest
from areca.files import read_table

GIB = 2**30
DTYPES = ("bfloat16", "float8", "tf32", "float32")  # keys of peak_flops; tf32: float32 rounded on NVIDIA's tensor cores
LARGEST = 1e30  # more is a slip of the keyboard


@dataclass(frozen=True)
class Chip:
    """One chip. `sources` has a text for each figure, or the reason why there is none."""

    name: str
    peak_flops: Mapping[str, float]  # by dtype, dense FLOP/s
    memory_bytes: float
    memory_bytes_per_second: float
    device_kinds: tuple[str, ...] = ()  # what jax calls it (Device.device_kind)
    interconnect: str = ""  # ICI or NVLink
    interconnect_bytes_per_second: float | None = None  # all links together, one direction
    network_bytes_per_second: float | None = None  # between hosts or islands, a chip's share, one direction
    tdp_watts: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def peak(self, dtype: str = "bfloat16") -> float:
        """Dense peak FLOP/s at `dtype`; ConfigError names the types that have a published peak."""
        if dtype not in self.peak_flops:
            raise ConfigError(f"{self.name} has no published peak for {dtype}, only for {', '.join(self.peak_flops)}.")
        return self.peak_flops[dtype]


def _tpu(
    name: str,
    kinds: tuple[str, ...],
    tera: dict[str, float],
    gib: float,
    memory: float,
    ici: float,
    network: float,
    **sources: str,
) -> Chip:
    sources = {"tdp_watts": "none published", **sources}
    peaks = {dtype: 1e12 * value for dtype, value in tera.items()}
    return Chip(name, peaks, gib * GIB, memory * 1e9, kinds, "ICI", ici * 1e9, network * 1e9, None, sources)


def _gpu(
    name: str,
    kind: str,
    tera: dict[str, float],
    gb: float,
    memory: float,
    nvlink: float,
    network: float,
    watts: float,
    **sources: str,
) -> Chip:
    peaks = {dtype: 1e12 * value for dtype, value in tera.items()}
    return Chip(name, peaks, gb * 1e9, memory * 1e9, (kind,), "NVLink", nvlink * 1e9, network * 1e9, watts, sources)


def _sheet(sheet: str, network: str, peak: str = "", **others: str) -> dict[str, str]:
    """The sources of a chip whose figures are all on one page, but for its network."""
    names = ("memory_bytes", "memory_bytes_per_second", "interconnect_bytes_per_second")
    return {"peak_flops": peak or sheet, **dict.fromkeys(names, sheet), "network_bytes_per_second": network, **others}


_V4 = "Google Cloud documentation, TPU v4, system architecture"
_V5E = "Google Cloud documentation, TPU v5e, system architecture"
_V5P = "Google Cloud documentation, TPU v5p, system architecture"
_V6E = "Google Cloud documentation, TPU v6e, system architecture"
_SCALING = "Austin et al. 2025, How to Scale Your Model, part 2, TPU specs"
_JOUPPI = "Jouppi et al. 2023 (TPU v4, ISCA)"
_A100 = "NVIDIA A100 data sheet, SXM column, dense"
_H100 = "NVIDIA H100 data sheet, SXM column"
_H200 = "NVIDIA H200 data sheet, SXM column"
_DGX_B200 = "NVIDIA DGX B200 data sheet, an eighth of the system"
_BLACKWELL = "NVIDIA Blackwell architecture technical brief, HGX B200, dense"
_HALF = "; tensor cores: half of what is printed with sparsity"
_HOPPER = {"bfloat16": 989.5, "float8": 1979, "tf32": 494.5, "float32": 67}
_NIC = "data sheet: one 400 Gb/s ConnectX-7 for each GPU"

_TABLE = (
    _tpu(
        "tpu-v4", ("TPU v4",), {"bfloat16": 275}, gib=32, memory=1200, ici=300, network=6.25,
        **_sheet(
            _V4, _SCALING, interconnect_bytes_per_second=f"{_JOUPPI}: 6 links of 50 GB/s",
            tdp_watts=f"none published; 90/170/192 W measured, {_V4}",
        ),
    ),
    _tpu(
        "tpu-v5e", ("TPU v5 lite", "TPU v5e"), {"bfloat16": 197}, gib=16, memory=819, ici=200, network=3.125,
        **_sheet(_V5E, f"{_V5E}: two 100 Gb/s NICs for 8 chips"),
    ),
    _tpu(
        "tpu-v5p", ("TPU v5", "TPU v5p"), {"bfloat16": 459, "float8": 459}, gib=95, memory=2765, ici=600, network=6.25,
        **_sheet(_V5P, f"{_V5P}: 50 Gb/s a chip"),
    ),
    _tpu(
        "tpu-v6e", ("TPU v6 lite", "TPU v6e"), {"bfloat16": 918}, gib=32, memory=1638, ici=400, network=12.5,
        **_sheet(_V6E, _SCALING),
    ),
    _gpu(
        "a100-40gb", "NVIDIA A100-SXM4-40GB", {"bfloat16": 312, "tf32": 156, "float32": 19.5},
        gb=40, memory=1555, nvlink=300, network=25, watts=400,
        **_sheet(_A100, "DGX A100 data sheet: one 200 Gb/s ConnectX-6 for each GPU", tdp_watts=_A100),
    ),
    _gpu(
        "a100-80gb", "NVIDIA A100-SXM4-80GB", {"bfloat16": 312, "tf32": 156, "float32": 19.5},
        gb=80, memory=2039, nvlink=300, network=25, watts=400,
        **_sheet(_A100, "DGX A100 data sheet: one 200 Gb/s ConnectX-6 for each GPU", tdp_watts=_A100),
    ),
    _gpu(
        "h100", "NVIDIA H100 80GB HBM3", _HOPPER, gb=80, memory=3350, nvlink=450, network=50, watts=700,
        **_sheet(_H100, f"DGX H100 {_NIC}", _H100 + _HALF, tdp_watts=_H100),
    ),
    _gpu(
        "h200", "NVIDIA H200", _HOPPER, gb=141, memory=4800, nvlink=450, network=50, watts=700,
        **_sheet(_H200, f"DGX H200 {_NIC}", _H200 + _HALF, tdp_watts=_H200),
    ),
    _gpu(
        "b200", "NVIDIA B200", {"bfloat16": 2250, "float8": 4500, "tf32": 1100},
        gb=180, memory=8000, nvlink=900, network=50, watts=1000,
        **_sheet(_DGX_B200, f"DGX B200 {_NIC}", _BLACKWELL, tdp_watts=_BLACKWELL),
    ),
)  # fmt: skip
CHIPS: dict[str, Chip] = {c.name: c for c in _TABLE}


def chip(name: str) -> Chip:
    """The chip of that name ("h200"), of that device kind ("NVIDIA H200"), or in that TOML or JSON file.

    Raises ConfigError, with the closest name, for a chip that is not known, and what `load_chip` raises for a file.
    """
    if name.endswith((".toml", ".json")):
        return load_chip(name)
    found = CHIPS.get("-".join(name.lower().replace("_", " ").split())) or for_device_kind(name)
    if found is None:
        raise ConfigError(
            f"there is no chip {name!r}{closest(name.lower(), CHIPS)}; name one of {', '.join(CHIPS)}, or a TOML or "
            "JSON file that describes yours."
        )
    return found


def for_device_kind(kind: str) -> Chip | None:
    """The chip that jax calls `kind` (Device.device_kind), or None: an unlisted device is no other chip."""
    return next((c for c in CHIPS.values() if kind in c.device_kinds), None)


def load_chip(path: Path | str) -> Chip:
    """The Chip in a TOML or JSON file with the fields of Chip; bandwidths in bytes per second of one direction.

    Raises DataError for a file that can't be read and ConfigError for a field that is unknown, missing or no figure.
    """
    path = Path(path)
    values = read_table(path)
    names = [f.name for f in fields(Chip)]
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a table of a chip's figures, not {values!r}.")
    for name in values:
        if name not in names:
            raise ConfigError(f"{path}: {name} is no figure of a chip{closest(name, names)}.")
    missing = [n for n in ("name", "peak_flops", "memory_bytes", "memory_bytes_per_second") if n not in values]
    if missing:
        raise ConfigError(f"{path} describes no chip without {' and '.join(missing)}.")
    for name in ("name", "interconnect"):
        if not isinstance(values.get(name, ""), str):
            raise ConfigError(f"{path}: {name} is {values[name]!r}; it must be text.")
    kinds, sources = values.get("device_kinds", []), values.get("sources", {})
    if not isinstance(kinds, list) or not all(isinstance(k, str) for k in kinds):
        raise ConfigError(f"{path}: device_kinds is {kinds!r}; it must be a list of texts.")
    if not isinstance(sources, dict) or not all(isinstance(s, str) for s in sources.values()):
        raise ConfigError(f"{path}: sources is {sources!r}; it must be a table of texts.")
    peaks = values["peak_flops"]
    if not isinstance(peaks, dict) or not peaks:
        raise ConfigError(f"{path}: peak_flops is {peaks!r}; it must be a table such as {{ bfloat16 = 989.5e12 }}.")
    for dtype in peaks:
        if dtype not in DTYPES:
            raise ConfigError(
                f"{path}: peak_flops.{dtype} is no type{closest(dtype, DTYPES)}; use {', '.join(DTYPES)}."
            )
    figures = {n: _figure(path, n, v) for n, v in values.items() if n.endswith(("_bytes", "_per_second", "_watts"))}
    return Chip(
        **{
            "interconnect": values.get("interconnect", ""),
            "name": values["name"],
            "device_kinds": tuple(kinds),
            "peak_flops": {d: _figure(path, f"peak_flops.{d}", v) for d, v in peaks.items()},
            "sources": dict.fromkeys([n for n in names if n in values], str(path)) | sources,
            **figures,
        }
    )


def _figure(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise ConfigError(f"{path}: {name} is {value!r}; it must be a number above 0.")
    return float(value)


__all__ = ["CHIPS", "DTYPES", "Chip", "chip", "for_device_kind", "load_chip"]
