"""The process that numbers come from: threads, memory allocator, compilation cache. Call `prepare` before jax starts.

XLA's results on the CPU depend on the number of its threads, so the threads are part of a run's topology and are set
here, in one place, through `NPROC`. The allocator setting keeps the large temporaries of a step in memory that is
already mapped; without it a step spends up to a fifth of its time on page faults (docs/log.md).
"""

import ctypes
import hashlib
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from areca.errors import ConfigError
from areca.files import write_atomic

CPUINFO = Path("/proc/cpuinfo")

_prepared: int | None = None


def prepare(threads: int = 0, *, devices: int = 1, cache: bool = True) -> int:
    """Fixes threads, virtual devices, the allocator and the compilation cache; returns the threads XLA will use.

    `threads` 0 means one for each core this process may use. `devices` is how many devices the CPU is to show, at
    least. Raises ConfigError if jax already runs with another count: the numbers would silently be those of another
    topology.
    """
    global _prepared
    if devices > 1:
        _show_devices(devices)
    threads = threads or available_cores()
    if not 0 <= threads <= 1024:
        raise ConfigError(f"threads is {threads}; give a number up to 1024, or 0 for one for each core.")
    if _prepared is not None:
        if _prepared != threads:
            raise ConfigError(
                f"this process computes with {_prepared} threads and the run asks for {threads}; "
                "results depend on the count, so start the run in a process of its own."
            )
        return threads
    if "jax" in sys.modules and _backend_started():
        raise ConfigError(
            "jax has started before areca.runtime.prepare; call prepare first, so that threads are fixed."
        )
    os.environ["NPROC"] = str(threads)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    keep_memory_mapped()
    if cache:
        _use_compilation_cache(threads, devices)
    _prepared = threads
    return threads


def is_prepared() -> bool:
    """Whether this process has called `prepare`, or runs jax already."""
    return _prepared is not None or ("jax" in sys.modules and _backend_started())


def available_cores() -> int:
    """Cores this process may run on (its affinity where the system knows one)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_memory_mapped() -> bool:
    """Tells glibc to reuse freed memory instead of returning it to the system; False where there is no glibc.

    Results are unchanged; memory is given back only at exit. ARECA_ALLOCATOR=default leaves the allocator alone.
    """
    if os.environ.get("ARECA_ALLOCATOR") == "default" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # <malloc.h>: M_TRIM_THRESHOLD -1, M_TOP_PAD -2, M_MMAP_MAX -4, M_ARENA_MAX -8
    settings = {-4: 0, -8: 1, -1: 2**31 - 1, -2: 256 << 20}
    accepted = [mallopt(option, value) for option, value in settings.items()]  # every one is tried
    return all(accepted)


def cache_directory() -> Path:
    """Where compiled programs are kept: $ARECA_CACHE, or the user's cache directory."""
    if chosen := os.environ.get("ARECA_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areca"


def unusable(directory: Path) -> str | None:
    """Why no file can be kept in a directory, there or still to be made; None if one can. Leaves nothing behind."""
    path = directory.absolute()
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        if not path.is_dir():
            return f"{path} is a file"
        with tempfile.TemporaryFile(dir=path) as f:
            f.write(bytes(1 << 20))
            f.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def no_cache(directory: Path, why: str) -> str:
    """The sentence's end for a cache that can't be used, with the way out."""
    name = "JAX_COMPILATION_CACHE_DIR" if os.environ.get("JAX_COMPILATION_CACHE_DIR") else "ARECA_CACHE"
    return f"{directory} can't be written ({why}); set {name} to a directory that can, or free some of its disk."


def topology(threads: int) -> dict[str, Any]:
    """Backend, devices and threads, as run.json records them. Starts jax."""
    import jax

    devices = jax.devices()
    return {
        "backend": devices[0].platform,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "threads": max(threads, len(devices)) if devices[0].platform == "cpu" else None,
        "processor": processor_name(),
    }


def processor_name() -> str:
    """The CPU as the system names it."""
    return cpuinfo("model name") or platform.processor() or platform.machine()


def cpuinfo(field: str, path: Path = CPUINFO) -> str | None:
    """What the system says of its first core, such as "model name" or "cpu cores"; None where it does not say."""
    try:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    except OSError:
        pass
    return None


def backend() -> str:
    """What jax computes on here, such as "cpu" or "gpu", without starting it in this process.

    Where jax could have an accelerator, another process is asked: this one would take the device's memory.
    """
    import importlib.metadata
    import importlib.util
    import subprocess

    if "jax" in sys.modules and _backend_started():
        return sys.modules["jax"].default_backend()
    places = [importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu")]
    if os.environ.get("JAX_PLATFORMS") == "cpu" or not (
        any(places) or importlib.metadata.entry_points(group="jax_plugins")
    ):
        return "cpu"
    asked = subprocess.run(
        [sys.executable, "-c", "import jax; print(jax.default_backend())"], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        reason = (asked.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ConfigError(f"jax can't start here ({reason}); set JAX_PLATFORMS=cpu to compute on the CPU.")
    return asked.stdout.split()[-1]


def versions() -> dict[str, str]:
    """Versions that a run's bits depend on."""
    import importlib.metadata

    names = ("areca", "jax", "jaxlib", "numpy", "grain", "orbax-checkpoint", "tokenizers")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def _backend_started() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(bridge and bridge.backends_are_initialized())


def _show_devices(devices: int) -> None:
    """Has the CPU show as many devices, unless jax runs or XLA_FLAGS says how many. jax may be imported already."""
    if _backend_started() or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if "jax" in sys.modules:
        config = sys.modules["jax"].config
        config.update("jax_num_cpu_devices", max(devices, config.jax_num_cpu_devices))
    else:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(max(devices, int(os.environ.get("JAX_NUM_CPU_DEVICES") or 1)))


def _use_compilation_cache(threads: int, devices: int) -> None:
    """Compiled programs are kept by processor, threads and devices.

    XLA's CPU compiler cuts a program for the threads it has, and jax's cache does not tell such programs apart: a
    process of two threads would take one compiled for one, and compute other bits, slower (docs/log.md).
    """
    shown = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    shown = int(shown[1]) if shown else max(devices, int(os.environ.get("JAX_NUM_CPU_DEVICES") or 1))
    processor = hashlib.sha256(f"{platform.machine()} {processor_name()}".encode()).hexdigest()[:8]
    place = f"{processor}-{threads}-threads-{shown}-devices"
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    directory = Path(given) if given else cache_directory() / "compiled"
    wanted = os.environ.get("JAX_ENABLE_COMPILATION_CACHE", "true").lower() not in ("0", "false")
    why = unusable(directory) if wanted else None
    if why:
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # processes of this one don't say it again
        if "jax" in sys.modules:
            sys.modules["jax"].config.update("jax_enable_compilation_cache", False)
        print(f"areca: compiled programs are not kept, as {no_cache(directory, why)}", file=sys.stderr, flush=True)
    if re.fullmatch(r"[0-9a-f]{8}-\d+-threads-\d+-devices", directory.name):  # a parent's, of its own topology
        directory = directory.parent
    settings = {
        "jax_compilation_cache_dir": str(directory / place),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        if name.upper() not in os.environ or name == "jax_compilation_cache_dir":
            os.environ[name.upper()] = str(value)
            if "jax" in sys.modules:  # it has read the environment already
                sys.modules["jax"].config.update(name, value)
    if wanted and not why:
        _write_entries_whole()


def _write_entries_whole() -> None:
    """Has jax put a compiled program into its cache by a rename, over one that could not be read.

    It writes in place (0.10.2) and leaves what is there, so a process that reads meanwhile finds a part, and a writer
    that was killed leaves one: a warning and a compilation in each process from then on.
    """
    from jax._src import lru_cache

    in_place, suffix = lru_cache.LRUCache.put, lru_cache._CACHE_SUFFIX

    def put(self: Any, key: str, value: bytes) -> None:
        if self.eviction_enabled or "://" in str(self.path):  # jax then has a lock, or the store is atomic
            in_place(self, key, value)
            return
        write_atomic(str(self.path / f"{key}{suffix}"), value)

    if in_place.__module__ == lru_cache.__name__:  # not ours already
        lru_cache.LRUCache.put = put
