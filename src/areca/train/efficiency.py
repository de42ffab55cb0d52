"""What a machine could do: peak FLOP/s from a table of accelerators, or measured on a CPU. Unknown stays unknown."""

import time
from typing import Any

# Peak of the matrix units by device kind, in FLOP/s: (bfloat16, source). Matched on jax's device_kind.
PEAKS: dict[str, tuple[float, str]] = {
    "TPU v4": (275e12, "Jouppi et al. 2023, Table 1"),
    "TPU v5p": (459e12, "Google Cloud TPU v5p system architecture"),
    "NVIDIA A100-SXM4-80GB": (312e12, "NVIDIA A100 data sheet, dense"),
    "NVIDIA H100 80GB HBM3": (989e12, "NVIDIA H100 data sheet, dense"),
    "NVIDIA H200": (989e12, "NVIDIA H200 data sheet, dense"),
}


def peak_flops(device: Any) -> tuple[float | None, str]:
    """Peak FLOP/s of one device and where the number is from; (None, "unknown ...") for hardware not in the table.

    On a CPU it is measured: the best of some float32 multiplications of 768 x 768 matrices in this process, with
    its threads. A measurement varies a little from run to run, so MFU on a CPU does too.
    """
    if device.platform != "cpu":
        known = PEAKS.get(device.device_kind)
        return known if known else (None, f"unknown: {device.device_kind} is not in the table of chips")
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
