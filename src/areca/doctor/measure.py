"""What each kind of device reaches: `python -m areca.doctor.measure`, a process of its own, prints JSON.

The peak is the best of some multiplications of square matrices, as a run measures its CPU's; the bandwidth that of
adding one to an array much larger than caches, which reads and writes every byte of it once.
"""

import json
import time
from collections.abc import Callable
from typing import Any

SECONDS = 1.0  # for one measurement, at most, after the first time
# by platform: side of the matrices, bytes of the array
SIZES = {"cpu": (768, 128 << 20), "gpu": (8192, 1 << 30), "tpu": (8192, 1 << 30)}
TYPES = {"cpu": ("float32",)}
TYPES_ELSEWHERE = ("bfloat16", "float32")


def measure() -> dict[str, Any]:
    """{"backend", "devices": [{"kind", "count", "flops", "bytes_per_second", "memory_bytes"}]}. Starts jax."""
    import jax

    kinds: dict[str, list[Any]] = {}
    for device in jax.devices():
        kinds.setdefault(device.device_kind, []).append(device)
    return {"backend": jax.default_backend(), "devices": [_of(kind, those) for kind, those in kinds.items()]}


def _of(kind: str, devices: list[Any]) -> dict[str, Any]:
    device = devices[0]
    side, array = SIZES.get(device.platform, SIZES["gpu"])
    found: dict[str, Any] = {"kind": kind, "platform": device.platform, "count": len(devices), "flops": {}}
    for dtype in TYPES.get(device.platform, TYPES_ELSEWHERE):
        found["flops"][dtype] = _guarded(lambda dtype=dtype: _flops(device, side, dtype))
    found["bytes_per_second"] = _guarded(lambda: _bandwidth(device, array))
    stats = _guarded(lambda: device.memory_stats() or {}) or {}
    found["memory_bytes"] = stats.get("bytes_limit")
    return found


def _guarded(measured: Callable[[], Any]) -> Any:
    """The value, or None where the device refuses: too little memory, a type that it lacks."""
    try:
        return measured()
    except Exception:
        return None


def _flops(device: Any, side: int, dtype: str) -> float:
    import jax
    import jax.numpy as jnp

    a = jax.device_put(jnp.full((side, side), 1.0 / side, dtype), device)
    return 2.0 * side**3 / _best(jax.jit(lambda a: a @ a), a)


def _bandwidth(device: Any, size: int) -> float:
    import jax
    import jax.numpy as jnp

    a = jax.device_put(jnp.zeros((size // 4,), jnp.float32), device)
    return 2.0 * size / _best(jax.jit(lambda a: a + 1, donate_argnums=0), a, again=True)


def _best(program: Callable[[Any], Any], a: Any, again: bool = False) -> float:
    """Seconds of the fastest of up to 20 calls, after one that compiles; each takes the last's result if `again`."""
    a = program(a).block_until_ready() if again else (program(a).block_until_ready(), a)[1]
    best, until = float("inf"), time.perf_counter() + SECONDS
    for _ in range(20):
        started = time.perf_counter()
        result = program(a).block_until_ready()
        best = min(best, time.perf_counter() - started)
        a = result if again else a
        if time.perf_counter() > until:
            break
    return best


if __name__ == "__main__":
    from areca import runtime

    runtime.prepare(cache=False)
    print(json.dumps(measure()))
