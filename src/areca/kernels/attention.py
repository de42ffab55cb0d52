"""Attention of one new position of each text over its cached keys and values.

    out[x] = sum_s p[x, s] v[s],   p[x] = softmax_s(q[x] k[s] / sqrt(K)),   s = 0 .. the text's position

Only the positions a text has are read, so a text's bits do not depend on how long the cache is, nor on its neighbours.
The heads that share a key are worked on together: a key or value is read once for them. A unit of the work is one lane
and one of its key heads; the scores of its heads lie in a result of the call until they are used.

Legend: B lanes, S cached positions, H heads, G key heads, K head width.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from areca.kernels.compiled import target
from areca.kernels.frame import ARGUMENT, RESULT, SUPPORT, buffer, fields, handler, rows_of
from areca.kernels.machine import (
    MINUS_INFINITY,
    Machine,
    at,
    constant,
    load,
    multiply_add,
    number,
    spread,
    store,
    this_machine,
    vector_of,
)

JOB = {
    "q": "ptr", "keys": "ptr", "values": "ptr", "positions": "ptr", "out": "ptr", "scores": "ptr",
    "S": "i64", "G": "i64", "R": "i64",
}  # fmt: skip
LOWEST = -87.0  # exp of less is 0


def attend(
    q_BHK: Float[Array, "B H K"],
    key_BSGK: Float[Array, "B S G K"],
    value_BSGK: Float[Array, "B S G K"],
    position_B: Int[Array, "B"],
    lanes: Int[Array, ""] | None = None,
) -> Float[Array, "B H K"]:
    """What each head makes of positions 0 to `position_B` (of all S if it is more); from lane `lanes` on it is 0."""
    B, H, K = q_BHK.shape
    S, G = key_BSGK.shape[1:3]
    assert key_BSGK.shape == value_BSGK.shape == (B, S, G, K)
    assert H % G == 0
    assert position_B.dtype == jnp.int32
    assert q_BHK.dtype == key_BSGK.dtype == value_BSGK.dtype == jnp.float32
    machine = this_machine()
    scores = jax.ShapeDtypeStruct((B, H, S + -S % machine.width), jnp.float32)
    call = jax.ffi.ffi_call(_target(machine, H // G, K), (jax.ShapeDtypeStruct(q_BHK.shape, jnp.float32), scores))
    return call(q_BHK, key_BSGK, value_BSGK, position_B, jnp.int32(B) if lanes is None else lanes)[0]


@functools.cache
def _target(machine: Machine, heads: int, depth: int) -> str:
    name = f"areca_attention_{heads}_{depth}_{machine.name}"
    return target(name, program(machine, heads, depth, name))


def program(machine: Machine, heads: int, depth: int, name: str) -> str:
    """The text of XLA's handler `name`, for `heads` heads of `depth` numbers that share a key, and all it needs."""
    width = math.gcd(machine.width, depth)
    together = max(1, min(heads, (machine.registers - 8) // (depth // width)))
    groups = [min(together, heads - first) for first in range(0, heads, together)]
    parts = [_heads(machine, width, depth, n) for n in sorted(set(groups))]
    prepare = "\n".join((
        buffer("q", ARGUMENT, 0, 3), buffer("keys", ARGUMENT, 1, 4), buffer("values", ARGUMENT, 2, 0),
        buffer("positions", ARGUMENT, 3, 0), buffer("lanes", ARGUMENT, 4, 0), buffer("out", RESULT, 0, 3),
        buffer("scores", RESULT, 1, 3), "  %lane = mul i64 %out1, %out2", rows_of("out", "lanes", "%lane", "%keys0"),
        "  %S = add i64 %keys1, 0", "  %G = add i64 %keys2, 0", "  %R = add i64 %scores2, 0",
        "  %job = alloca %job", fields("%job", "%job", JOB, store=True),
        "  %units = mul i64 %rows, %G", "  %cached = mul i64 %rows, %S", "  %work = mul i64 %cached, %lane",
    ))  # fmt: skip
    job = f"%job = type {{ {', '.join(JOB.values())} }}"
    unit = _unit(heads, depth, groups)
    return "\n".join((job, SUPPORT, _exp(machine), *parts, unit, handler(name, prepare, "%units", "%work")))


def _exp(m: Machine) -> str:
    """exp of numbers up to 0, to 2 units in the last place: 2^n times a polynomial of the rest. Of NaN it is NaN."""
    vector, whole, some = vector_of(m.width), f"<{m.width} x i32>", f"<{m.width} x i1>"

    def all_of(value: float) -> str:
        return constant([value] * m.width)

    magic = all_of(1.5 * 2**23)  # added to a number it leaves that rounded, in the low bits
    text = [f"define internal {vector} @exp({vector} %x) {{"]
    text += [f"  %low = fcmp olt {vector} %x, {all_of(LOWEST)}"]
    text += [f"  %y = select {some} %low, {vector} {all_of(LOWEST)}, {vector} %x"]
    text += multiply_add(m, vector, "%t", "%y", all_of(math.log2(math.e)), magic)
    text += [f"  %n = fsub {vector} %t, {magic}"]
    text += multiply_add(m, vector, "%r0", "%n", all_of(-0.693359375), "%y")  # ln 2 in two parts, the first exact
    text += multiply_add(m, vector, "%r", "%n", all_of(0.693359375 - math.log(2)), "%r0")
    for i in range(5, -1, -1):
        above = f"%p{i + 1}" if i < 5 else all_of(1 / 720)
        text += multiply_add(m, vector, f"%p{i}", above, "%r", all_of(1 / math.factorial(i)))
    text += [f"  %bits = bitcast {vector} %t to {whole}", f"  %up = shl {whole} %bits, {constant([23] * m.width)}"]
    text += [f"  %power = add {whole} %up, {constant([127 << 23] * m.width)}"]
    text += [f"  %two = bitcast {whole} %power to {vector}", f"  %e = fmul {vector} %p0, %two"]
    text += [f"  %z = select {some} %low, {vector} zeroinitializer, {vector} %e"]
    return "\n".join([*text, f"  ret {vector} %z", "}"])


def _heads(m: Machine, width: int, depth: int, heads: int) -> str:
    """`heads` heads at %q over %n positions, whose keys and values are %row numbers apart; scores in rows of %R."""
    given = "ptr %q, ptr %keys, ptr %values, ptr %out, ptr %scores, i64 %n, i64 %row, i64 %R"
    text = [f"define internal void @heads_{heads}({given}) {{", "entry:"]
    for r in range(heads):
        text += [f"  %R{r} = mul i64 %R, {r}", *at(f"%p{r}", "%scores", f"%R{r}")]
        for v in range(depth // width):
            text += load(vector_of(width), f"%q{r}_{v}", "%q", r * depth + v * width)
    text += _score(m, width, depth, heads) + _weigh(m, heads) + _mean(m, width, depth, heads)
    return "\n".join([*text, "  ret void", "}"])


def _score(m: Machine, width: int, depth: int, heads: int) -> list[str]:
    """First: the scores, each head's largest %top, and what makes zeros of the last vector's rest."""
    vector, parts = vector_of(width), depth // width
    text = ["  br label %score", "score:", "  %s = phi i64 [0, %entry], [%s1, %score]"]
    text += [f"  %m{r} = phi float [{MINUS_INFINITY}, %entry], [%top{r}, %score]" for r in range(heads)]
    text += ["  %ik = mul i64 %s, %row", *at("%k", "%keys", "%ik")]
    for v in range(parts):
        text += load(vector, f"%k{v}", "%k", v * width)
    for r in range(heads):
        text += [f"  %d{r}_0 = fmul {vector} %q{r}_0, %k0"]
        for v in range(1, parts):
            text += multiply_add(m, vector, f"%d{r}_{v}", f"%q{r}_{v}", f"%k{v}", f"%d{r}_{v - 1}")
        text += [f"  %h{r} = call reassoc float @llvm.vector.reduce.fadd(float -0.0, {vector} %d{r}_{parts - 1})"]
        text += [f"  %x{r} = fmul float %h{r}, {number(depth**-0.5)}", *store("float", f"%x{r}", f"%p{r}", "%s")]
        text += [f"  %g{r} = fcmp ogt float %x{r}, %m{r}", f"  %top{r} = select i1 %g{r}, float %x{r}, float %m{r}"]
    text += ["  %s1 = add i64 %s, 1", "  %on = icmp ult i64 %s1, %n", "  br i1 %on, label %score, label %pad"]
    text += ["pad:", "  %t = phi i64 [%n, %score], [%t1, %fill]", f"  %tw = and i64 %t, {m.width - 1}"]
    text += ["  %even = icmp eq i64 %tw, 0", "  br i1 %even, label %weights, label %fill", "fill:"]
    for r in range(heads):
        text += [*at(f"%fill{r}", f"%p{r}", "%t"), f"  store float {MINUS_INFINITY}, ptr %fill{r}, align 4"]
    return [*text, "  %t1 = add i64 %t, 1", "  br label %pad"]


def _weigh(m: Machine, heads: int) -> list[str]:
    """Second: exp of what the scores are below the largest, and their sums %z."""
    vector = vector_of(m.width)
    text = ["weights:"]
    for r in range(heads):
        text += spread(m.width, f"%b{r}", f"%top{r}")
    text += ["  br label %weigh", "weigh:", "  %j = phi i64 [0, %weights], [%j1, %weigh]"]
    text += [f"  %y{r} = phi {vector} [zeroinitializer, %weights], [%z{r}, %weigh]" for r in range(heads)]
    for r in range(heads):
        text += [*load(vector, f"%c{r}", f"%p{r}", "%j"), f"  %below{r} = fsub {vector} %c{r}, %b{r}"]
        text += [f"  %e{r} = call {vector} @exp({vector} %below{r})", *store(vector, f"%e{r}", f"%p{r}", "%j")]
        text += [f"  %z{r} = fadd {vector} %y{r}, %e{r}"]
    text += [f"  %j1 = add i64 %j, {m.width}", "  %jo = icmp ult i64 %j1, %n"]
    return [*text, "  br i1 %jo, label %weigh, label %means"]


def _mean(m: Machine, width: int, depth: int, heads: int) -> list[str]:
    """Third: the values' means by these weights."""
    vector, wide, parts = vector_of(width), vector_of(m.width), range(depth // width)
    text = ["means:"]
    for r in range(heads):
        text += [f"  %sum{r} = call reassoc float @llvm.vector.reduce.fadd(float -0.0, {wide} %z{r})"]
        text += [f"  %inverse{r} = fdiv float 1.0, %sum{r}", *spread(width, f"%i{r}", f"%inverse{r}")]
    text += ["  br label %mean", "mean:", "  %u = phi i64 [0, %means], [%u1, %mean]"]
    for r in range(heads):
        text += [f"  %o{r}_{v} = phi {vector} [zeroinitializer, %means], [%a{r}_{v}, %mean]" for v in parts]
    text += ["  %iv = mul i64 %u, %row", *at("%v", "%values", "%iv")]
    for v in parts:
        text += load(vector, f"%v{v}", "%v", v * width)
    for r in range(heads):
        text += [*load("float", f"%weight{r}", f"%p{r}", "%u"), *spread(width, f"%w{r}", f"%weight{r}")]
        for v in parts:
            text += multiply_add(m, vector, f"%a{r}_{v}", f"%w{r}", f"%v{v}", f"%o{r}_{v}")
    text += ["  %u1 = add i64 %u, 1", "  %uo = icmp ult i64 %u1, %n", "  br i1 %uo, label %mean, label %end", "end:"]
    for r in range(heads):
        for v in parts:
            text += [f"  %f{r}_{v} = fmul {vector} %a{r}_{v}, %i{r}"]
            text += store(vector, f"%f{r}_{v}", "%out", r * depth + v * width)
    return text


def _unit(heads: int, depth: int, groups: list[int]) -> str:
    """A unit: one lane and one of its key heads."""
    text = ["define internal void @unit(ptr %job, i64 %u, i64 %next) {", fields("%job", "%job", JOB, store=False)]
    text += ["  %b = udiv i64 %u, %G", "  %g = urem i64 %u, %G"]
    text += ["  %place = getelementptr i32, ptr %positions, i64 %b", "  %position = load i32, ptr %place"]
    text += ["  %wide = sext i32 %position to i64", "  %reads = add i64 %wide, 1"]
    text += ["  %n = call i64 @llvm.umin.i64(i64 %reads, i64 %S)", f"  %row = mul i64 %G, {depth}"]
    text += [f"  %iq = mul i64 %u, {heads * depth}", *at("%qu", "%q", "%iq"), *at("%ou", "%out", "%iq")]
    text += [f"  %rows = mul i64 %R, {heads}", "  %is = mul i64 %u, %rows", *at("%su", "%scores", "%is")]
    text += ["  %lane = mul i64 %S, %row", "  %il = mul i64 %b, %lane"]
    text += [f"  %ig = mul i64 %g, {depth}", "  %ik = add i64 %il, %ig"]
    text += [*at("%ku", "%keys", "%ik"), *at("%vu", "%values", "%ik")]
    first = 0
    for n in groups:
        text += [*at(f"%q{first}", "%qu", first * depth), *at(f"%o{first}", "%ou", first * depth)]
        text += [f"  %f{first} = mul i64 %R, {first}", *at(f"%s{first}", "%su", f"%f{first}")]
        given = f"ptr %q{first}, ptr %ku, ptr %vu, ptr %o{first}, ptr %s{first}, i64 %n, i64 %row, i64 %R"
        text += [f"  call void @heads_{n}({given})"]
        first += n
    return "\n".join([*text, "  ret void", "}"])


__all__ = ["attend", "program"]
