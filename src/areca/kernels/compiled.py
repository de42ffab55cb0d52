"""Compiles a kernel for this machine's processor, once a process, and tells XLA of it."""

import ctypes
import os
import threading
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from areca.errors import ConfigError
from areca.kernels.machine import features_here, llvm

_lock = threading.Lock()
_kept: dict[str, tuple[Any, Any]] = {}  # what is compiled must live as long as the process


def usable(array: Array) -> bool:
    """Whether kernels of ours can work with `array`: float32, on one device of the CPU; not with ARECA_KERNELS=0."""
    devices = array.devices()
    one = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return one and array.dtype == jnp.float32 and os.environ.get("ARECA_KERNELS") != "0"


def target(name: str, text: str) -> str:
    """Compiles a module's text and registers its function `name` with XLA, once; returns the name, for `ffi_call`.

    Raises:
        ConfigError: LLVM or XLA refuses; the sentence says why, and the way out.
    """
    with _lock:
        if name not in _kept:
            try:
                engine, address = _compile(name, text)
                handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
                jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
            except Exception as error:
                why = " ".join(str(error).split())
                raise ConfigError(
                    f"the kernel {name} could not be made for this processor ({why}); set ARECA_KERNELS=0 to compute "
                    "with XLA's programs, which are slower and have other last bits."
                ) from error
            _kept[name] = (engine, handler)
    return name


def _compile(name: str, text: str) -> tuple[Any, int]:
    """A function, optimized for this processor: who owns its code, and its address."""
    b = llvm()
    b.initialize_native_target()
    b.initialize_native_asmprinter()
    module = b.parse_assembly(text)
    module.verify()
    features = ",".join(f"{'+' if there else '-'}{feature}" for feature, there in sorted(features_here().items()))
    machine = b.Target.from_triple(b.get_process_triple()).create_target_machine(
        cpu=b.get_host_cpu_name() if features else "", features=features, opt=3, jit=True
    )
    passes = b.create_pass_builder(machine, b.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = b.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine, engine.get_function_address(name)


__all__ = ["target", "usable"]
