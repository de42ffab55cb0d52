"""What is computed on and what its energy is known by. jax is started in another process, which may hang or die."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from areca import chips
from areca.doctor.finding import Finding, size
from areca.errors import install
from areca.footprint.cpus import cpu_watts
from areca.footprint.nvml import find_nvml
from areca.footprint.power import expected
from areca.footprint.rapl import find_rapl
from areca.runtime import available_cores, processor_name

SECONDS = 60.0  # for jax to start and measure; a CPU takes three
NVIDIA = ("/dev/nvidia0", "/proc/driver/nvidia/version")
TPU = ("/dev/accel0", "/dev/vfio/0")
FAR_BELOW = 0.5  # of a published peak: something else computes there, or it is throttled
COMMAND = [sys.executable, "-m", "areca.doctor.measure"]


def devices(command: list[str] | None = None, root: Path = Path("/"), seconds: float = SECONDS) -> Finding:
    """Devices by kind with what they reach, measured, beside what their makers publish."""
    found = Finding()
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            command or COMMAND, capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        found.problem(
            f"jax did not start and measure within {seconds:g} s; something may hold the device (`nvidia-smi`), or set "
            "JAX_PLATFORMS=cpu.",
            stops=True,
        )
        return found
    try:
        found.values = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        why = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1][:300]
        found.problem(f"jax can't start here ({why}); {_way_out(why)}.", stops=True)
        return found
    for device in found.values["devices"]:
        _judge(found, device)
    _judge_backend(found, root)
    return found


def _way_out(said: str) -> str:
    """What to do once jax has not started: unset the variable that its error names, if it is one that is set."""
    blamed = [name for name in os.environ if name.startswith(("JAX_", "XLA_")) and name.lower() in said.lower()]
    if blamed:
        return f"unset {' and '.join(f'{name} (it is {os.environ[name]})' for name in sorted(blamed))}"
    return "mend that, or set JAX_PLATFORMS=cpu"


def _judge(found: Finding, device: dict[str, Any]) -> None:
    """A line for a kind of device, and what is wrong with it."""
    flops = {k: v for k, v in device["flops"].items() if v}
    said = ", ".join(f"{v / 1e12:.3g} TFLOP/s in {k}" for k, v in flops.items()) or "FLOP/s could not be measured"
    rate = device["bytes_per_second"]
    speed = "memory could not be measured" if not rate else f"memory {rate / 1e9:,.3g} GB/s"
    room = f", {size(device['memory_bytes'])}" if device["memory_bytes"] else ""
    found.lines.append(f"{device['count']} x {device['kind']}{room}: {said}, {speed} (measured)")
    if device["platform"] == "cpu":
        _judge_few_rows(found, device.get("few_rows") or {})
        return
    known = chips.for_device_kind(device["kind"])
    if known is None:
        found.problem(
            f"{device['kind']} is not in the table of chips, so MFU is unknown; `areca count --chip FILE` takes one "
            "that you describe."
        )
        return
    for dtype, reached in flops.items():
        published = known.peak_flops.get("tf32" if dtype == "float32" and "tf32" in known.peak_flops else dtype)
        if dtype == "bfloat16" and published:
            found.lines.append(f"{known.name}: {published / 1e12:,.4g} TFLOP/s in {dtype} published")
            device["published_flops"] = {dtype: published}
            if reached < FAR_BELOW * published:
                found.problem(
                    f"{device['kind']} reaches {reached / published:.0%} of its published peak in {dtype}; see whether "
                    "something else computes on it or it is too hot (`nvidia-smi`)."
                )


def _judge_few_rows(found: Finding, few: dict[str, Any]) -> None:
    """What generating text reaches there, by kernels of ours and by XLA."""
    if few.get("ours"):
        beside = f", {few['xla'] / 1e9:.3g} by XLA's" if few.get("xla") else ""
        reached = f"{few['ours'] / 1e9:.3g} GFLOP/s by our kernel{beside}"
        found.lines.append(f"products of {few['rows']} rows, as in generating text: {reached}")
    if few.get("why"):
        found.problem(f"{few['why'].rstrip('.')}.")


def _judge_backend(found: Finding, root: Path) -> None:
    """An accelerator that is here and not used."""
    backend, chosen = found.values["backend"], os.environ.get("JAX_PLATFORMS", "")
    if backend != "cpu":
        return
    for files, what, extra, module in (
        (NVIDIA, "an NVIDIA GPU", "cuda", ("jax_cuda12_plugin", "jax_cuda13_plugin")),
        (TPU, "a TPU", "tpu", ("libtpu",)),
    ):
        if not any((root / f.lstrip("/")).exists() for f in files):
            continue
        if "cpu" in chosen:
            way = f"JAX_PLATFORMS is {chosen}; unset it"
        elif not any(map(importlib.util.find_spec, module)):
            way = f"jax has no support for it; {install(extra)}"
        elif os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
            way = "CUDA_VISIBLE_DEVICES hides it; unset it"
        else:
            way = "its driver and jax don't find each other; see what `python -c 'import jax; jax.devices()'` says"
        found.problem(f"{what} is here and jax computes on the CPU: {way}.")


def energy(backend: str = "cpu", kind: str = "cpu", count: int = 1) -> Finding:
    """The sensors of energy that can be read, and what is assumed where there is none."""
    found = Finding()
    sensors, missing = find_rapl()
    boards: list[Any] = []
    if backend in ("gpu", "cuda"):
        boards, why = find_nvml(count)
        missing = [*missing, *why]
    cores, name = available_cores(), processor_name()
    cpu = cpu_watts(name)
    assumed: dict[str, Any] = {}
    if not sensors:
        assumed["cpu"] = {"watts_per_core": cpu.watts_per_core, "kind": cpu.kind, "source": cpu.source}
        found.lines.append(f"processors: {cores * cpu.watts_per_core:g} W for {cores} cores, {cpu.kind} ({cpu.source})")
    else:
        found.lines.append(f"processors: measured by {', '.join(s.name for s in sensors)}")
    if boards:
        found.lines.append(f"accelerators: measured by {', '.join(b.name for b in boards)}")
    elif backend != "cpu":
        assumed |= expected(backend, kind, count, cores, name)
        chip = assumed.get("chips", {})
        watts = "unknown" if chip.get("watts") is None else f"{chip['watts']:g} W"
        found.lines.append(f"accelerators: {watts}, {chip.get('kind', 'unknown')} ({chip.get('source', 'no figure')})")
    found.lines += [f"no sensor: {m}" for m in missing]
    found.values = {"measured": [s.name for s in [*sensors, *boards]], "assumed": assumed, "missing": list(missing)}
    return found
