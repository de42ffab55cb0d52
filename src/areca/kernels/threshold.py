"""Where a row of scores is cut: at the first scores, from the highest down, that together have a wanted weight.

A threshold is found by halving what is left of the numbers' order, 32 times at most and until there is one score in it,
without sorting. XLA walks over all rows for each halving; here a row stays in the first cache, and rows that are not
cut cost nothing. A unit of the work is a row.

Legend: B rows, V scores of each.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from areca.kernels.compiled import target
from areca.kernels.frame import ARGUMENT, RESULT, SUPPORT, buffer, fields, handler
from areca.kernels.machine import MINUS_INFINITY, Machine, load, number, spread, this_machine, vector_of

JOB = {"scores": "ptr", "weights": "ptr", "wanted": "ptr", "out": "ptr", "V": "i64"}


def threshold(
    score_BV: Float[Array, "B V"], weight_BV: Float[Array, "B V"] | None, wanted_B: Float[Array, "B"]
) -> Float[Array, "B"]:
    """A number in each row so that the scores of it or more are the fewest highest with the wanted weight.

    Scores equal to the last of them are among them. Without weights each score weighs 1. A row whose wanted weight is
    negative is not cut: minus infinity.
    """
    B, _ = score_BV.shape
    assert wanted_B.shape == (B,)
    assert score_BV.dtype == wanted_B.dtype == jnp.float32
    call = jax.ffi.ffi_call(_target(this_machine(), weight_BV is not None), jax.ShapeDtypeStruct((B,), jnp.float32))
    return call(score_BV, score_BV if weight_BV is None else weight_BV, wanted_B)


@functools.cache
def _target(machine: Machine, weighted: bool) -> str:
    name = f"areca_threshold_{'weighted' if weighted else 'counted'}_{machine.name}"
    return target(name, program(machine, weighted, name))


def program(machine: Machine, weighted: bool, name: str) -> str:
    """The text of XLA's handler `name` and all it needs."""
    prepare = "\n".join((
        buffer("scores", ARGUMENT, 0, 2), buffer("weights", ARGUMENT, 1, 0), buffer("wanted", ARGUMENT, 2, 0),
        buffer("out", RESULT, 0, 0), "  %V = add i64 %scores1, 0",
        "  %job = alloca %job", fields("%job", "%job", JOB, store=True), "  %work = mul i64 %scores0, %V",
    ))  # fmt: skip
    job = f"%job = type {{ {', '.join(JOB.values())} }}"
    unit = handler(name, prepare, "%scores0", "%work")
    return "\n".join((job, SUPPORT, _weigh(machine, weighted), _UNIT, unit))


def _weigh(m: Machine, weighted: bool) -> str:
    """How many of a row's scores are %low or more, and what they weigh: vectors, then what is left one by one."""
    vector, whole, some = vector_of(m.width), f"<{m.width} x i32>", f"<{m.width} x i1>"
    text = ["define internal { float, i32 } @weigh(ptr %scores, ptr %weights, i64 %V, float %low) {", "entry:"]
    text += [*spread(m.width, "%lows", "%low"), f"  %even = and i64 %V, {-m.width}"]
    text += ["  %any = icmp ne i64 %even, 0", "  br i1 %any, label %vectors, label %rest"]
    text += ["vectors:", "  %j = phi i64 [0, %entry], [%j1, %vectors]"]
    text += [f"  %n = phi {whole} [zeroinitializer, %entry], [%n1, %vectors]"]
    text += [f"  %s = phi {vector} [zeroinitializer, %entry], [%s1, %vectors]"]
    text += [*load(vector, "%x", "%scores", "%j"), f"  %in = fcmp oge {vector} %x, %lows"]
    text += [f"  %one = zext {some} %in to {whole}", f"  %n1 = add {whole} %n, %one"]
    if weighted:
        text += [
            *load(vector, "%w", "%weights", "%j"),
            f"  %y = select {some} %in, {vector} %w, {vector} zeroinitializer",
        ]
        text += [f"  %s1 = fadd {vector} %s, %y"]
    else:
        text += [f"  %s1 = fadd {vector} %s, zeroinitializer"]
    text += [f"  %j1 = add i64 %j, {m.width}", "  %on = icmp ult i64 %j1, %even"]
    text += ["  br i1 %on, label %vectors, label %rest", "rest:"]
    text += [f"  %nv = phi {whole} [zeroinitializer, %entry], [%n1, %vectors]"]
    text += [f"  %sv = phi {vector} [zeroinitializer, %entry], [%s1, %vectors]"]
    text += [f"  %count = call i32 @llvm.vector.reduce.add({whole} %nv)"]
    text += [f"  %sum = call reassoc float @llvm.vector.reduce.fadd(float -0.0, {vector} %sv)", "  br label %look"]
    text += ["look:", "  %i = phi i64 [%even, %rest], [%i1, %single]"]
    text += ["  %c = phi i32 [%count, %rest], [%c1, %single]", "  %t = phi float [%sum, %rest], [%t1, %single]"]
    text += ["  %more = icmp ult i64 %i, %V", "  br i1 %more, label %single, label %end", "single:"]
    text += [*load("float", "%xi", "%scores", "%i"), "  %is = fcmp oge float %xi, %low", "  %ci = zext i1 %is to i32"]
    text += [*load("float", "%wi", "%weights", "%i"), "  %yi = select i1 %is, float %wi, float 0.0"]
    text += ["  %c1 = add i32 %c, %ci", "  %t1 = fadd float %t, %yi", "  %i1 = add i64 %i, 1", "  br label %look"]
    weight = "%t" if weighted else "%f"
    text += ["end:", "  %f = uitofp i32 %c to float"]
    text += [f"  %r0 = insertvalue {{ float, i32 }} poison, float {weight}, 0"]
    return "\n".join([*text, "  %r = insertvalue { float, i32 } %r0, i32 %c, 1", "  ret { float, i32 } %r", "}"])


# Numbers are ordered as whole ones: a positive one's bits with the first set, a negative one's all turned over. What is
# found among the smallest, which a processor may take for 0, is the next below them that it doesn't.
_UNIT = f"""
define internal void @unit(ptr %job, i64 %u, i64 %next) {{
entry:
{fields("%job", "%job", JOB, store=False)}
  %row = mul i64 %u, %V
  %su = getelementptr float, ptr %scores, i64 %row
  %wu = getelementptr float, ptr %weights, i64 %row
  %ou = getelementptr float, ptr %out, i64 %u
  %pw = getelementptr float, ptr %wanted, i64 %u
  %want = load float, ptr %pw, align 4
  %all = trunc i64 %V to i32
  %whole = fcmp olt float %want, 0.0
  br i1 %whole, label %end, label %halve
halve:
  %bit = phi i32 [31, %entry], [%bit1, %halve]
  %found = phi i32 [0, %entry], [%found1, %halve]
  %below = phi i32 [%all, %entry], [%below1, %halve]
  %above = phi i32 [0, %entry], [%above1, %halve]
  %b = shl i32 1, %bit
  %middle = or i32 %found, %b
  %positive = icmp slt i32 %middle, 0
  %turned = xor i32 %middle, -1
  %cleared = and i32 %middle, 2147483647
  %bits = select i1 %positive, i32 %cleared, i32 %turned
  %low = bitcast i32 %bits to float
  %r = call {{ float, i32 }} @weigh(ptr %su, ptr %wu, i64 %V, float %low)
  %weight = extractvalue {{ float, i32 }} %r, 0
  %count = extractvalue {{ float, i32 }} %r, 1
  %enough = fcmp oge float %weight, %want
  %found1 = select i1 %enough, i32 %middle, i32 %found
  %below1 = select i1 %enough, i32 %count, i32 %below
  %above1 = select i1 %enough, i32 %above, i32 %count
  %bit1 = sub i32 %bit, 1
  %between = sub i32 %below1, %above1
  %several = icmp sgt i32 %between, 1
  %bits_left = icmp sge i32 %bit1, 0
  %on = and i1 %several, %bits_left
  br i1 %on, label %halve, label %take
take:
  %positive1 = icmp slt i32 %found1, 0
  %turned1 = xor i32 %found1, -1
  %cleared1 = and i32 %found1, 2147483647
  %bits1 = select i1 %positive1, i32 %cleared1, i32 %turned1
  %number = bitcast i32 %bits1 to float
  %real = fcmp ord float %number, %number
  %known = select i1 %real, float %number, float {MINUS_INFINITY}
  %size = and i32 %bits1, 2147483647
  %tiny = icmp ult i32 %size, 8388608
  %floor = select i1 %positive1, float 0.0, float {number(-float(np.finfo(np.float32).tiny))}
  %taken = select i1 %tiny, float %floor, float %known
  br label %end
end:
  %value = phi float [{MINUS_INFINITY}, %entry], [%taken, %take]
  store float %value, ptr %ou, align 4
  ret void
}}
"""

__all__ = ["program", "threshold"]
