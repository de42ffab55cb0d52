"""Will it fit, and how fast can it be: a training step on a mesh, compiled ahead of time on virtual devices.

Nothing is allocated and no accelerator is needed. Exact are the bytes of parameters and optimizer, what is kept for the
backward pass, the FLOPs and the transfers (read off the program). The temporaries come twice: an estimate of what is
live (areca.train.ahead.memory), and those of XLA's CPU compiler, which widens bfloat16 to float32: an upper bound. Step
times are rooflines: FLOPs at the peak and bytes at full speed of the links, once with transfers hidden behind computing
and once after it.
"""

import math
import re
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from areca import chips
from areca.config import ModelConfig, OptimizerConfig
from areca.errors import ConfigError
from areca.model.config import PRESETS
from areca.model.counts import (
    count_params,
    exact_flops_per_token,
    hardware_flops_per_token,
    model_flops_utilisation,
    newton_schulz_flops,
    recomputed_flops_per_token,
    six_nd,
)
from areca.train.ahead.scaling import PALM_TOKENS_PER_SECOND, over_islands

if TYPE_CHECKING:
    from areca.model.layout import Layout, Remat

MOST_DEVICES = 2047  # XLA's CPU backend refuses more
# The program is not run, so its machine code may be slow: made with these in an eighth of the time, the plan of memory
# is the same to within a few hundred bytes.
UNRUN = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@dataclass(frozen=True)
class DryRun:
    """What is asked: one island's mesh and its share of the batch."""

    model: ModelConfig
    data: int
    model_axis: int
    batch: int  # sequences an island takes in a step
    context: int
    remat: "Remat" = "block"
    dtype: str = "bfloat16"
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    islands: int = 1
    chip: chips.Chip | None = None
    chips_per_host: int = 4
    link_gbps: float = 0.0  # of a host to its peer in another island, each way; 0: published ones
    island_seconds: float = 0.0  # of a step of one island alone; 0: published, or by roofline

    @property
    def devices(self) -> int:
        """Of one island."""
        return self.data * self.model_axis

    @property
    def hosts(self) -> int:
        """Of one island."""
        return math.ceil(self.devices / self.chips_per_host)

    def layout(self, data: int) -> "Layout":
        """The layout with a data axis of so many devices."""
        from areca.model.layout import Layout

        return Layout(data, self.model_axis, self.remat, self.dtype)

    def compiled_data(self) -> int:
        """The data axis that is compiled: the whole one, or the largest divisor that XLA's CPU backend takes."""
        most = MOST_DEVICES // self.model_axis
        if most < 1:
            raise ConfigError(
                f"a model axis of {self.model_axis} is more than the {MOST_DEVICES} devices that can be simulated."
            )
        return max(d for d in range(1, min(most, self.data) + 1) if self.data % d == 0)


def ask(model: ModelConfig, mesh: str, *, batch: int, islands: int, chip: str, **others: Any) -> dict[str, Any]:
    """`dry_run` from a command's words, in a process whose jax has not started yet.

    `mesh` is "DATAxMODEL", `batch` the sequences of all islands, `chip` a name or a file of areca.chips or empty.
    """
    import jax

    from areca import runtime

    found = re.fullmatch(r"(\d{1,7})[xX](\d{1,7})", mesh)
    if not found:
        raise ConfigError(f"the mesh is {mesh!r}; write it as DATAxMODEL, for example 256x12.")
    for name, value in (("islands", islands), ("batch", batch)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; it must be at least 1.")
    if batch % islands:
        raise ConfigError(
            f"a batch of {batch} sequences can't be shared by {islands} islands; give a multiple of them."
        )
    asked = DryRun(
        model,
        int(found[1]),
        int(found[2]),
        batch // islands,
        islands=islands,
        chip=chips.chip(chip) if chip else None,
        **others,
    )
    check(asked)
    jax.config.update("jax_platforms", "cpu")  # virtual devices, whatever this machine has
    runtime.prepare(1, devices=asked.compiled_data() * asked.model_axis)
    return dry_run(asked)


def check(asked: DryRun) -> None:
    """ConfigError for a mesh or a batch that can't be."""
    layout = asked.layout(asked.data)
    layout.check(asked.model)
    recomputed_flops_per_token(asked.model, asked.context, asked.remat)
    for name in ("batch", "context", "islands", "chips_per_host"):
        if getattr(asked, name) < 1:
            raise ConfigError(f"{name.replace('_', '-')} is {getattr(asked, name)}; it must be at least 1.")
    for name in ("link_gbps", "island_seconds"):
        if not 0 <= getattr(asked, name) < 1e12:
            raise ConfigError(
                f"{name.replace('_', '-')} is {getattr(asked, name)}; give a number above 0, or leave it out."
            )
    layout.check_batch("batch", asked.batch)
    asked.model.check_context("context", asked.context)


def dry_run(asked: DryRun) -> dict[str, Any]:
    """Compiles the step and gathers what it takes. Needs a process with at least as many devices as are compiled."""
    from areca.model.layout import DATA, MODEL
    from areca.train import step
    from areca.train.ahead.transfers import product_flops, transfers

    check(asked)
    data = asked.compiled_data()
    layout = asked.layout(data)
    mesh = layout.mesh()
    batch = asked.batch * data // asked.data  # as many sequences on each chip
    started = time.perf_counter()
    state = step.abstract_state(asked.model, asked.optimizer, layout, mesh)
    traced = step.trace_step(asked.model, asked.optimizer, state, batch, asked.context, layout, mesh)
    memory = _planned(traced.lower()).memory_analysis()
    seconds = time.perf_counter() - started
    temporaries = _temporaries(asked, traced.jaxpr, state.params, memory.temp_size_in_bytes)

    n = count_params(asked.model)
    # The optimizer's products are traced whole: XLA cuts them over the devices, nearly evenly.
    products = product_flops(traced.jaxpr) - _optimizer_flops(asked) * (layout.devices - 1) // layout.devices
    # What is gathered or summed over data is the same bytes whatever the axis' length, but for (n - 1) / n.
    stretch = _ring(asked.data) / _ring(data) if data > 1 else 1.0
    moved = [
        {**asdict(t), "bytes": round(t.bytes * (stretch if t.axis == DATA else 1.0))}
        for t in transfers(traced.jaxpr, {DATA: data, MODEL: asked.model_axis})
    ]
    result = {
        "model": asdict(asked.model),
        "mesh": {"data": asked.data, "model": asked.model_axis, "islands": asked.islands},
        "devices": asked.devices * asked.islands,
        "batch": asked.batch * asked.islands,
        "context": asked.context,
        "remat": asked.remat,
        "dtype": asked.dtype,
        "optimizer": asked.optimizer.name,
        "chip": asked.chip.name if asked.chip else None,
        "n_params_total": n.total,
        "n_params": n.non_embedding,
        "compiled": {
            "data": data,
            "model": asked.model_axis,
            "batch": batch,
            "seconds": seconds,
            "argument_bytes": memory.argument_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
        },
        "bytes_per_chip": _state_bytes(asked) | temporaries,
        "extrapolated": _extrapolated(asked, data),
        "flops": _flops(asked) | {"products_per_chip_in_program": products},
        "transfers": moved,
        "islands_exchange": _exchange(asked),
    }
    result |= _verdicts(asked, result)
    return result | {"scaling": over_islands(asked, result)}


def _ring(n: int) -> float:
    return (n - 1) / n


def _itemsize(dtype: str) -> int:
    return {"bfloat16": 2, "float16": 2, "float32": 4}[dtype]


def _state_bytes(asked: DryRun) -> dict[str, int]:
    """Float32 parameters and their moments, cut evenly over an island's devices: two, of Muon's matrices one."""
    n = count_params(asked.model)
    each = 4 * n.total / asked.devices
    moments = 4 * (2 * n.total - (n.attention + n.mlp if asked.optimizer.name == "muon" else 0)) / asked.devices
    return {"parameters": round(each), "optimizer": round(moments), "gradients": round(each)}


def _planned(lowered: Any) -> Any:
    """Compiled, only to ask for its plan of memory."""
    import jax

    try:
        return lowered.compile(compiler_options=UNRUN)
    except jax.errors.JaxRuntimeError:  # an XLA that has no such options
        return lowered.compile()


def _temporaries(asked: DryRun, jaxpr: Any, params: Any, compiled: int) -> dict[str, Any]:
    """What is kept for the backward pass, read off the program, and the temporaries: an estimate and a bound.

    A single device writes out a few layers, so that nothing is stacked to be read: then only "block" is known.
    """
    from areca.train.ahead.memory import estimate
    from areca.train.ahead.transfers import kept_bytes

    m = asked.model
    kept = kept_bytes(jaxpr, m.n_layers)
    if kept is None and asked.remat == "block":
        kept = m.n_layers * asked.batch * asked.context * m.d_model * _itemsize(asked.dtype) // asked.devices
    found = (
        None
        if kept is None
        else estimate(
            m, asked.layout(asked.data), params, asked.batch, asked.context, kept, muon=asked.optimizer.name == "muon"
        )
    )
    return {
        "saved_activations": kept,
        "temporaries_estimate": found and found.bytes,
        "temporaries_at_most": max(compiled, found.bytes if found else 0),
        "estimate": found and {"peak": found.peak, "moments": found.moments},
    }


def _extrapolated(asked: DryRun, data: int) -> list[str]:
    notes = []
    if asked.optimizer.name == "muon" and asked.devices > 1:
        notes.append(
            "Muon's products are cut over the devices by XLA, nearly evenly, and what they move between them is not in "
            "the transfers."
        )
    if data == asked.data:
        return notes
    return [
        *notes,
        f"compiled on {data} x {asked.model_axis} virtual devices with as many sequences on each (more than "
        f"{MOST_DEVICES} can't be simulated); bytes of parameters and optimizer are for {asked.data} x "
        f"{asked.model_axis} by arithmetic, transfers over data by the length of its ring, temporaries as compiled.",
    ]


def _optimizer_flops(asked: DryRun) -> int:
    """Of an island's update: every island makes the same. Elementwise optimizers multiply no matrices."""
    return newton_schulz_flops(asked.model) if asked.optimizer.name == "muon" else 0


def _flops(asked: DryRun) -> dict[str, float]:
    tokens = asked.batch * asked.context
    return {
        "optimizer_per_step": _optimizer_flops(asked) * asked.islands,
        "optimizer_per_chip": _optimizer_flops(asked) / asked.devices,
        "exact_per_step": exact_flops_per_token(asked.model, asked.context) * tokens * asked.islands,
        "six_nd_per_step": six_nd(asked.model, tokens * asked.islands),
        "hardware_per_step": hardware_flops_per_token(asked.model, asked.context, asked.remat) * tokens * asked.islands,
        "hardware_per_chip": hardware_flops_per_token(asked.model, asked.context, asked.remat) * tokens / asked.devices,
    }


def _exchange(asked: DryRun) -> dict[str, float] | None:
    """Gradients between islands: each host sends its share to its pair, once a step, in the computation's type."""
    if asked.islands == 1:
        return None
    total = count_params(asked.model).total * _itemsize(asked.dtype)
    return {"bytes": total, "host_pairs": asked.hosts, "bytes_per_host_pair": total / asked.hosts}


def _verdicts(asked: DryRun, result: dict[str, Any]) -> dict[str, Any]:
    """What depends on the chip: whether it fits, and step times by roofline."""
    chip = asked.chip
    if chip is None:
        return {"fits": None, "roofline": None, "published": None}
    need = result["bytes_per_chip"]
    state = need["parameters"] + need["optimizer"]
    total = state + need["temporaries_at_most"]
    fits: dict[str, Any] = {"needed_at_most": total, "memory": chip.memory_bytes, "fits": total <= chip.memory_bytes}
    fits["needed_estimate"] = need["temporaries_estimate"] and state + need["temporaries_estimate"]
    if not fits["fits"]:  # the bound may be too high, the parts that are exact are not
        fits["needed_at_least"] = state + (need["saved_activations"] or 0)
        fits["fits"] = None if fits["needed_at_least"] <= chip.memory_bytes else False
    flops = result["flops"]
    compute = (flops["hardware_per_chip"] + flops["optimizer_per_chip"]) / chip.peak(asked.dtype)
    inside = None
    if chip.interconnect_bytes_per_second:
        inside = sum(t["bytes"] for t in result["transfers"]) / chip.interconnect_bytes_per_second
    between = 0.0
    if (exchange := result["islands_exchange"]) is not None:
        speed = chip.network_bytes_per_second
        between = (
            (asked.islands - 1) * exchange["bytes_per_host_pair"] / (speed * asked.chips_per_host) if speed else None
        )
    roofline: dict[str, Any] = {
        "compute_seconds": compute,
        "transfer_seconds": inside,
        "between_islands_seconds": between,
    }
    if inside is not None and between is not None:
        for name, seconds in (("hidden", max(compute, inside, between)), ("exposed", compute + inside + between)):
            speed = asked.batch * asked.islands * asked.context / seconds
            roofline[name] = {"step_seconds": seconds, "tokens_per_second": speed, "mfu": _mfu(asked, speed)}
    return {"fits": fits, "roofline": roofline, "published": _published(asked, roofline)}


def _published(asked: DryRun, roofline: dict[str, Any]) -> dict[str, Any] | None:
    """PaLM 540B's throughput (Chowdhery et al. 2022, section 4.1), if this is its configuration."""
    same = asked.model == PRESETS["palm-540b"].resolved() and asked.chip == chips.chip("tpu-v4")
    same = same and (asked.data, asked.model_axis, asked.islands, asked.batch, asked.context) == (
        256,
        12,
        2,
        1024,
        2048,
    )
    if not same:
        return None
    seconds = asked.batch * asked.islands * asked.context / PALM_TOKENS_PER_SECOND
    return {
        "tokens_per_second": PALM_TOKENS_PER_SECOND,
        "step_seconds": seconds,
        "mfu": _mfu(asked, PALM_TOKENS_PER_SECOND),
        "source": "Chowdhery et al. 2022, section 4.1",
        "of_exposed": roofline["exposed"]["step_seconds"] / seconds if "exposed" in roofline else None,
    }


def _mfu(asked: DryRun, tokens_per_second: float) -> float:
    assert asked.chip is not None
    return model_flops_utilisation(
        asked.model,
        context=asked.context,
        tokens_per_second=tokens_per_second,
        chips=asked.devices * asked.islands,
        peak_flops_per_chip=asked.chip.peak(asked.dtype),
    )
