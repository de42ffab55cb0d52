"""Versions, the extras that are installed, and variables of the environment that change what is computed."""

import importlib.metadata
import os
import platform
import re
from collections.abc import Mapping

from areca.doctor.finding import Finding
from areca.errors import install

CORE = ("areca", "jax", "jaxlib", "numpy", "optax", "orbax-checkpoint", "grain", "tokenizers")
# What each extra of areca is known by.
EXTRAS = {
    "cuda": ("jax-cuda12-plugin", "jax-cuda13-plugin"), "tpu": ("libtpu",), "ray": ("ray",), "hf": ("transformers",),
    "energy": ("codecarbon", "nvidia-ml-py"), "track": ("tensorboard",), "wandb": ("wandb",), "trackio": ("trackio",),
    "quickstart": ("chitchat-dataset",), "serve": ("starlette", "uvicorn"), "remote": ("fsspec",), "s3": ("s3fs",),
    "gs": ("gcsfs",), "hub": ("huggingface-hub",), "sentencepiece": ("sentencepiece",),
}  # fmt: skip
LEAST_PYTHON = (3, 11)

# Flags of XLA after which the same program gives other numbers.
_NUMERICS = re.compile(
    r"--?(xla_cpu_enable_fast_math|xla_cpu_enable_fast_min_max|xla_cpu_fast_math_\w+|xla_gpu_enable_fast_min_max"
    r"|xla_allow_excess_precision|xla_backend_optimization_level|xla_cpu_prefer_vector_width|xla_cpu_max_isa"
    r"|xla_gpu_autotune_level|xla_gpu_deterministic_ops|xla_cpu_use_\w+|xla_cpu_multi_thread_eigen"
    r"|xla_disable_hlo_passes|xla_gpu_enable_triton_\w+|xla_gpu_enable_cublaslt)\b(=\S+)?"
)
# variable -> (values that are as good as unset, what it does, whether no run gets through)
_VARIABLES: dict[str, tuple[tuple[str, ...], str, bool]] = {
    "JAX_DISABLE_JIT": (("", "0", "false"), "nothing is compiled and a step takes hundreds of times as long", True),
    "JAX_DEBUG_NANS": (("", "0", "false"), "every program is run again where it gives a NaN, and steps wait", False),
    "JAX_ENABLE_X64": (("", "0", "false"), "arrays become float64, with other numbers and twice the memory", False),
    "JAX_DEFAULT_MATMUL_PRECISION": (("",), "matrix multiplications round otherwise", False),
    "JAX_DEFAULT_DTYPE_BITS": (("", "64"), "types are narrower than runs expect", False),
}


def versions(installed: Mapping[str, str] | None = None, python: tuple[int, ...] | None = None) -> Finding:
    """Python and what numbers depend on. `installed` and `python` stand in for this machine's in tests."""
    found = Finding()
    have = {name: _version(name) for name in CORE} if installed is None else {n: installed.get(n) for n in CORE}
    own = tuple(int(p) for p in platform.python_version_tuple()[:2]) if python is None else python
    found.values = {"python": platform.python_version(), **have, "system": platform.platform()}
    found.lines.append(f"python {found.values['python']}, {', '.join(f'{n} {v}' for n, v in have.items() if v)}")
    found.lines.append(found.values["system"])
    if own < LEAST_PYTHON:
        found.problem(f"this is Python {'.'.join(map(str, own))}; areca needs 3.11 or newer.", stops=True)
    for name in (n for n, v in have.items() if v is None and n != "areca"):
        found.problem(f"{name} is not installed; `pip install areca` brings it.", stops=True)
    jax, jaxlib = have["jax"], have["jaxlib"]
    if jax and jaxlib and jax != jaxlib:
        newer = _numbers(jaxlib) > _numbers(jax)
        pair = jaxlib if newer else jax
        found.problem(
            f"jax is {jax} and jaxlib {jaxlib}, which are released in pairs; `pip install jax=={pair} jaxlib=={pair}`.",
            stops=newer,  # jax refuses a jaxlib that is newer than itself
        )
    return found


def extras() -> Finding:
    """Which extras of areca are there, by their packages."""
    found = Finding()
    for extra, packages in EXTRAS.items():
        have = {p: v for p in packages if (v := _version(p))}
        found.values[extra] = have or None
    there = [f"{e} ({', '.join(f'{p} {v}' for p, v in have.items())})" for e, have in found.values.items() if have]
    missing = [e for e, have in found.values.items() if not have]
    found.lines.append(f"installed: {', '.join(there) or 'none'}")
    if missing:
        found.lines.append(f"not installed: {', '.join(missing)} ({install('NAME')})")
    return found


def environment(variables: Mapping[str, str] | None = None) -> Finding:
    """Variables of jax, XLA and CUDA that are set, and those that change numbers."""
    found, env = Finding(), os.environ if variables is None else variables
    shown = re.compile(r"(JAX|XLA|ARECA|OMP|CUDA_VISIBLE|NPROC$|TF_CPP|LD_PRELOAD$)")
    found.values = {k: v for k, v in sorted(env.items()) if shown.match(k)}
    found.lines.append(", ".join(f"{k}={v}" for k, v in found.values.items()) or "nothing is set")
    for match in _NUMERICS.finditer(env.get("XLA_FLAGS", "")):
        found.problem(
            f"XLA_FLAGS has {match[0]}, with which the same program gives other numbers; take it out where runs are to "
            "be compared or repeated."
        )
    for name, (unset, effect, stops) in _VARIABLES.items():
        if env.get(name, "").lower() not in unset:
            found.problem(f"{name} is {env[name]}: {effect}; unset it.", stops=stops)
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
