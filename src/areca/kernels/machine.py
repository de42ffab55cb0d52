"""What of this machine's processor a kernel is written for, and the instructions that depend on it.

Kernels are texts in LLVM's language. The functions here give lines of such a text; `to`, `a` and so on are names or
constants in it.
"""

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from areca.errors import ConfigError

MINUS_INFINITY = "0xFFF0000000000000"


@dataclass(frozen=True)
class Machine:
    """A processor as the kernels see it."""

    width: int  # float32 numbers in a vector
    registers: int  # vectors that it holds
    fused: bool  # a multiplication and an addition are one instruction, rounded once

    @property
    def name(self) -> str:
        """Part of a kernel's name, as what is compiled for one processor is not for another."""
        return f"{self.width}_{self.registers}_{'fused' if self.fused else 'two'}"


def llvm() -> ModuleType:
    """LLVM, loaded when it is first needed; ConfigError where it can't be."""
    try:
        import llvmlite.binding
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"LLVM can't be loaded ({error}); install llvmlite, which areca depends on, or set ARECA_KERNELS=0 to "
            "compute with XLA's programs, which are slower and have other last bits."
        ) from error
    return llvmlite.binding


def features_here() -> dict[str, bool]:
    """What LLVM knows this processor to have; nothing where it can't tell."""
    try:
        return dict(llvm().get_host_cpu_features())
    except RuntimeError:
        return {}


@functools.cache
def this_machine() -> Machine:
    """The processor that this process runs on."""
    if llvm().get_process_triple().startswith(("aarch64", "arm64")):
        return Machine(width=4, registers=32, fused=True)
    features = features_here()
    if features.get("avx512f"):
        return Machine(width=16, registers=32, fused=True)
    return Machine(width=8 if features.get("avx") else 4, registers=16, fused=bool(features.get("fma")))


def multiply_add(m: Machine, vector: str, to: str, a: str, b: str, c: str) -> list[str]:
    """`to` = a b + c."""
    if m.fused:
        return [f"  {to} = call {vector} @llvm.fma({vector} {a}, {vector} {b}, {vector} {c})"]
    return [f"  {to}_ = fmul {vector} {a}, {b}", f"  {to} = fadd {vector} {to}_, {c}"]


def at(to: str, base: str, place: str | int) -> list[str]:
    """`to` = the address of number `place` from `base` on."""
    return [f"  {to} = getelementptr float, ptr {base}, i64 {place}"]


def load(kind: str, to: str, base: str, place: str | int) -> list[str]:
    """`to` = what is at number `place` from `base` on, a number or a vector."""
    return [*at(f"{to}_at", base, place), f"  {to} = load {kind}, ptr {to}_at, align 4"]


def store(kind: str, value: str, base: str, place: str | int) -> list[str]:
    """Puts a number or a vector at number `place` from `base` on."""
    return [*at(f"{value}_to", base, place), f"  store {kind} {value}, ptr {value}_to, align 4"]


def spread(width: int, to: str, number: str) -> list[str]:
    """`to` = a vector of one number."""
    vector = vector_of(width)
    return [
        f"  {to}_1 = insertelement {vector} poison, float {number}, i32 0",
        f"  {to} = shufflevector {vector} {to}_1, {vector} poison, <{width} x i32> zeroinitializer",
    ]


def vector_of(width: int) -> str:
    """The type of a vector of float32."""
    return f"<{width} x float>"


def number(value: float) -> str:
    """A float32 as the text has it: the bits of the double that is the same number."""
    return f"0x{struct.pack('>d', np.float32(value)).hex().upper()}"


def constant(values: Sequence[float] | Sequence[int]) -> str:
    """A vector of float32, or of int32."""
    return f"<{', '.join(f'i32 {v}' if isinstance(v, int) else f'float {number(v)}' for v in values)}>"
