"""What a machine could do and what a run made of it. Unknown hardware stays unknown."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from areca import chips
from areca.config import RunConfig
from areca.model.counts import hardware_flops_utilisation, model_flops_utilisation


@dataclass(frozen=True)
class Machine:
    """What a run computes on: the peak FLOP/s of a chip (None: unknown), where that is from, and how many chips."""

    peak: float | None
    source: str
    chips: int

    @staticmethod
    def of(config: RunConfig) -> "Machine":
        """This process' machine, as the run uses it. On a CPU that measures the peak."""
        import jax

        peak, source = peak_flops(jax.devices()[0])
        # Virtual devices share the cores whose peak was measured.
        on_cpu = jax.default_backend() == "cpu"
        return Machine(peak, source, 1 if on_cpu else config.devices)

    def mfu(self, config: RunConfig, tokens_per_second: float) -> float | None:
        """MFU as a fraction; None where the peak is unknown."""
        if not (given := self._given(config, tokens_per_second)):
            return None
        return model_flops_utilisation(config.model, **given)

    def hfu(self, config: RunConfig, tokens_per_second: float) -> float | None:
        """HFU as a fraction; None where the peak is unknown."""
        if not (given := self._given(config, tokens_per_second)):
            return None
        return hardware_flops_utilisation(config.model, **given, remat=config.parallel.remat)

    def _given(self, config: RunConfig, tokens_per_second: float) -> dict[str, Any]:
        if self.peak is None:
            return {}
        return {
            "context": config.data.context,
            "tokens_per_second": tokens_per_second,
            "chips": self.chips,
            "peak_flops_per_chip": self.peak,
        }


def peak_flops(device: Any, dtype: str = "bfloat16") -> tuple[float | None, str]:
    """Peak FLOP/s of one device and where the number is from; (None, "unknown: ...") for hardware not in the table.

    `dtype` is what an accelerator computes in. On a CPU the peak is measured: the best of some float32 multiplications
    of 768 x 768 matrices in this process, with its threads. A measurement varies a little from run to run, so MFU on a
    CPU does too.
    """
    if device.platform != "cpu":
        known = chips.for_device_kind(device.device_kind)
        if known is None:
            return None, f"unknown: {device.device_kind} is not in the table of chips"
        if dtype not in known.peak_flops:
            return None, f"unknown: no peak of {known.name} is published for {dtype}"
        return known.peak(dtype), f"{known.name}, {dtype}: {known.sources['peak_flops']}"
    import jax
    import jax.numpy as jnp

    n = 768
    multiply = jax.jit(lambda a: a @ a).lower(jax.ShapeDtypeStruct((n, n), jnp.float32)).compile()
    a = jnp.full((n, n), 1.0 / n, jnp.float32)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        multiply(a).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2.0 * n**3 / best, "measured float32 matrix multiplication"


def steady_tokens_per_second(rows: Iterable[Mapping[str, Any]], context: int) -> float:
    """Tokens/s at the steady state, from the lines of metrics.jsonl.

    A line with `steady` false is the first step after a compilation, a save or an evaluation: it does not count, and a
    new stretch begins. A stretch has the rate of its tokens over its time (single steps are read when the host comes
    to it, so their own times mean less), and the run has that of the median stretch, weighted by steps. If no step was
    steady, all of them count.
    """
    rows = list(rows)
    stretches: list[list[float]] = []  # [steps, tokens, seconds]
    for row in rows:
        if not row.get("steady", True):
            stretches.append([0, 0, 0.0])
            continue
        if not stretches:
            stretches.append([0, 0, 0.0])
        stretches[-1] = [a + b for a, b in zip(stretches[-1], (1, row["batch"] * context, row["seconds"]), strict=True)]
    stretches = [s for s in stretches if s[0]] or [
        [len(rows), sum(r["batch"] for r in rows) * context, sum(r["seconds"] for r in rows)]
    ]
    stretches.sort(key=lambda s: s[1] / s[2])
    half = sum(s[0] for s in stretches) / 2
    for steps, tokens, seconds in stretches:
        half -= steps
        if half <= 0:
            return tokens / seconds
    raise AssertionError("the weights sum to twice the half")
