"""Compiles a kernel for this machine's processor, once a process, and tells XLA of it."""

import ctypes
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from areca.errors import ConfigError
from areca.kernels.machine import llvm

_kept: list[Any] = []  # what is compiled must live as long as the process


def usable(array: Array) -> bool:
    """Whether kernels of ours can work with `array`: float32, on one device of the CPU; not with ARECA_KERNELS=0."""
    devices = array.devices()
    one = len(devices) == 1 and next(iter(devices)).platform == "cpu"
    return one and array.dtype == jnp.float32 and os.environ.get("ARECA_KERNELS") != "0"


@functools.cache
def target(name: str, text: str) -> str:
    """Compiles a module's text and registers its function `name` with XLA, once; returns the name, for `ffi_call`.

    Raises:
        ConfigError: LLVM or XLA refuses; the sentence says why, and the way out.
    """
    try:
        handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(_compile(name, text))
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
    except Exception as error:
        why = " ".join(str(error).split())
        raise ConfigError(
            f"the kernel {name} could not be made for this processor ({why}); set ARECA_KERNELS=0 to compute with "
            "XLA's programs, which are slower and have other last bits."
        ) from error
    _kept.append(handler)
    return name


def _compile(name: str, text: str) -> int:
    """The address of a function, optimized for this processor."""
    b = llvm()
    b.initialize_native_target()
    b.initialize_native_asmprinter()
    module = b.parse_assembly(text)
    module.verify()
    machine = b.Target.from_triple(b.get_process_triple()).create_target_machine(
        cpu=b.get_host_cpu_name(), features=b.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    passes = b.create_pass_builder(machine, b.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    engine = b.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _kept.append(engine)
    return engine.get_function_address(name)


__all__ = ["target", "usable"]
