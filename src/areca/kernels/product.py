"""Products of few rows with many weights, which are packed for that once.

    out[M, N] = x[M, K] w[K, N],   float32; panel p of the packed weights is w[:, p C : (p + 1) C], row after row

Such a product waits for the weights' way from memory, so each is read once, in the order it lies there, and the piece
that comes next is asked for while this one is multiplied. A *tile* is some rows of x times a piece of one panel, its
sums in registers. A sum is a chain over the k of each piece, and one over the pieces, whatever the tile, so a row's
bits depend neither on the other rows, nor on their number, nor on the threads: what one text gets is what it gets in
any company.

Legend: M rows, K depth, N columns, P panels of C columns (the last one padded with zeros).
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from areca.kernels.compiled import target
from areca.kernels.frame import ARGUMENT, RESULT, SUPPORT, buffer, fields, handler, rows_of
from areca.kernels.machine import Machine, at, load, multiply_add, spread, store, this_machine, vector_of

DEPTH = 512  # rows of a piece, so that it stays in the second cache for the next tile; and sums are not long chains
VECTORS = 3  # of a tile's row
JOB = {"x": "ptr", "w": "ptr", "out": "ptr", "M": "i64", "K": "i64", "N": "i64"}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """A matrix [K, N] in panels."""

    panels: Float[Array, "P K C"]
    columns: int = field(metadata={"static": True})  # N

    def part(self, first: int, last: int) -> tuple["Packed", slice]:
        """The panels that have columns `first` to `last` - 1, and where these are in a product with them."""
        C = self.panels.shape[2]
        panels = self.panels[first // C : -(-last // C)]
        begin = first % C
        return Packed(panels, panels.shape[0] * C), slice(begin, begin + last - first)


def pack(kernel_KN: Float[Array, "K N"]) -> Packed:
    """The matrix in panels as wide as this processor's tiles."""
    K, N = kernel_KN.shape
    C = VECTORS * this_machine().width
    padded = jnp.pad(kernel_KN, ((0, 0), (0, -N % C)))
    return Packed(padded.reshape(K, -1, C).transpose(1, 0, 2), N)


def product(x_MK: Float[Array, "M K"], weights: Packed, rows: Int[Array, ""] | None = None) -> Float[Array, "M N"]:
    """x times the matrix; with `rows`, of so many first rows of x: the others' results are 0.

    A row's bits do not depend on the other rows, their number, or the threads.
    """
    P, K, C = weights.panels.shape
    assert x_MK.shape[1] == K
    assert x_MK.dtype == weights.panels.dtype == jnp.float32
    out = jax.ShapeDtypeStruct((x_MK.shape[0], P * C), jnp.float32)
    count = jnp.int32(x_MK.shape[0]) if rows is None else rows
    call = jax.ffi.ffi_call(_target(this_machine()), out)
    return call(x_MK, weights.panels, count)[:, : weights.columns]


@functools.cache
def _target(machine: Machine) -> str:
    name = f"areca_product_{machine.name}"
    return target(name, program(machine, name))


def program(machine: Machine, name: str) -> str:
    """The text of XLA's handler `name` and all it needs."""
    most = (machine.registers - VECTORS - 1) // VECTORS  # beside the sums: a row of the panel, a number of x
    rows = 1 << (most.bit_length() - 1)
    tiles = [_tile(machine, n, ask=True) for n in range(1, rows + 1)] + [_tile(machine, rows, ask=False)]
    prepare = "\n".join((
        buffer("x", ARGUMENT, 0, 2), buffer("w", ARGUMENT, 1, 3), buffer("count", ARGUMENT, 2, 0),
        buffer("out", RESULT, 0, 2), rows_of("out", "count", "%out1", "%x0"),
        "  %M = add i64 %rows, 0", "  %K = add i64 %x1, 0", "  %N = add i64 %out1, 0",
        "  %job = alloca %job", fields("%job", "%job", JOB, store=True),
        "  %MK = mul i64 %M, %K", "  %work = mul i64 %MK, %N",
    ))  # fmt: skip
    job = f"%job = type {{ {', '.join(JOB.values())} }}"
    return "\n".join((job, SUPPORT, *tiles, _unit(machine, rows), handler(name, prepare, "%w0", "%work")))


def _tile(m: Machine, rows: int, ask: bool) -> str:
    """`rows` rows of %x times %depth rows of a panel, added to what %out has unless they are the %first.

    While it multiplies, the piece at %ahead, of the same size, is asked for, if that is wanted.
    """
    vector, C = vector_of(m.width), VECTORS * m.width
    sums = [(r, v) for r in range(rows) for v in range(VECTORS)]
    name = f"tile_{rows}" if ask else "tile"
    given = "ptr %x, i64 %K, ptr %w, i64 %depth, ptr %out, i64 %N, ptr %ahead, i1 %first"
    text = [f"define internal void @{name}({given}) {{", "entry:"]
    for r in range(rows):
        text += [f"  %i{r} = mul i64 %K, {r}", *at(f"%x{r}", "%x", f"%i{r}")]
        text += [f"  %j{r} = mul i64 %N, {r}", *at(f"%o{r}", "%out", f"%j{r}")]
    text += ["  br label %loop", "loop:", "  %k = phi i64 [0, %entry], [%k1, %loop]"]
    text += [f"  %s{r}_{v} = phi {vector} [zeroinitializer, %entry], [%n{r}_{v}, %loop]" for r, v in sums]
    text += [f"  %kC = mul i64 %k, {C}", *at("%wk", "%w", "%kC"), *at("%next", "%ahead", "%kC")]
    for line in range(0, C if ask else 0, 16):  # 64 bytes
        text += at(f"%a{line}", "%next", line)
        text += [f"  call void @llvm.prefetch(ptr %a{line}, i32 0, i32 2, i32 1)"]  # to read, second cache, data
    for v in range(VECTORS):
        text += load(vector, f"%w{v}", "%wk", v * m.width)
    for r in range(rows):
        text += [*load("float", f"%e{r}", f"%x{r}", "%k"), *spread(m.width, f"%b{r}", f"%e{r}")]
        for v in range(VECTORS):
            text += multiply_add(m, vector, f"%n{r}_{v}", f"%b{r}", f"%w{v}", f"%s{r}_{v}")
    text += ["  %k1 = add i64 %k, 1", "  %on = icmp ult i64 %k1, %depth"]
    text += ["  br i1 %on, label %loop, label %end", "end:", "  br i1 %first, label %new, label %more", "new:"]
    for r, v in sums:
        text += store(vector, f"%n{r}_{v}", f"%o{r}", v * m.width)
    text += ["  ret void", "more:"]
    for r, v in sums:
        text += load(vector, f"%l{r}_{v}", f"%o{r}", v * m.width)
        text += [f"  %t{r}_{v} = fadd {vector} %l{r}_{v}, %n{r}_{v}"]
        text += store(vector, f"%t{r}_{v}", f"%o{r}", v * m.width)
    return "\n".join([*text, "  ret void", "}"])


def _unit(m: Machine, rows: int) -> str:
    """A unit: all rows of x times a panel, DEPTH of its rows at a time. The last tile of a piece asks for the next."""
    C, counts = VECTORS * m.width, range(1, rows + 1)
    cases = "\n".join(f"    i64 {n}, label %rows_{n}" for n in counts)
    given = "ptr %xk, i64 %K, ptr %wk, i64 %depth, ptr %om, i64 %N"
    calls = "\n".join(
        f"rows_{n}:\n  call void @tile_{n}({given}, ptr %ahead, i1 %first)\n  br label %pieced" for n in counts
    )
    return f"""
define internal void @unit(ptr %job, i64 %u, i64 %next) {{
entry:
{fields("%job", "%job", JOB, store=False)}
  %panel = mul i64 %K, {C}
  %iw = mul i64 %u, %panel
  %wu = getelementptr float, ptr %w, i64 %iw
  %in = mul i64 %next, %panel
  %wn = getelementptr float, ptr %w, i64 %in
  %io = mul i64 %u, {C}
  %ou = getelementptr float, ptr %out, i64 %io
  %none = icmp eq i64 %M, 0
  br i1 %none, label %end, label %piece
piece:
  %k = phi i64 [0, %entry], [%k1, %pieced]
  %left = sub i64 %K, %k
  %depth = call i64 @llvm.umin.i64(i64 %left, i64 {DEPTH})
  %k1 = add i64 %k, %depth
  %first = icmp eq i64 %k, 0
  %last = icmp eq i64 %k1, %K
  %at = mul i64 %k, {C}
  %wk = getelementptr float, ptr %wu, i64 %at
  %at1 = mul i64 %k1, {C}
  %w1 = getelementptr float, ptr %wu, i64 %at1
  %ahead = select i1 %last, ptr %wn, ptr %w1
  br label %some
some:
  %m = phi i64 [0, %piece], [%m1, %plain]
  %rest = sub i64 %M, %m
  %count = call i64 @llvm.umin.i64(i64 %rest, i64 {rows})
  %m1 = add i64 %m, %count
  %through = icmp eq i64 %m1, %M
  %mK = mul i64 %m, %K
  %mKk = add i64 %mK, %k
  %xk = getelementptr float, ptr %x, i64 %mKk
  %mN = mul i64 %m, %N
  %om = getelementptr float, ptr %ou, i64 %mN
  br i1 %through, label %asking, label %plain
plain:
  call void @tile({given}, ptr null, i1 %first)
  br label %some
asking:
  switch i64 %count, label %pieced [
{cases}
  ]
{calls}
pieced:
  br i1 %last, label %end, label %piece
end:
  ret void
}}
"""


__all__ = ["Packed", "pack", "product", "program"]
