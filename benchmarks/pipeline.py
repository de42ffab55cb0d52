"""A pipeline's bubble and memory: replayed on as many processors as stages, beside the theory, for both schedules.

A decoder of 32 layers in stages. The programs are the same on every stage, so each is measured once, alone: the median
of its times in steps on one stage. The traced graph of a step over S stages with M microbatches is then replayed with
these seconds. In one process other stages' work fills the bubble, so a step's own time says what dispatching costs, no
more: that is a line for the first size. The last lines compare it with SPMD programs of the same work (the same model
and batch, remat block, over as many devices), steps in turn: tokens a second of the pipeline over theirs, quartiles,
as it is here, and with the bubbles that as many processors as stages would have. Barham et al. 2022 had 1.05 to 1.06.

    theory    (S - 1) / (M + S - 1), of equal stages
    passes    the same of the replay, forward and backward passes only
    slowest   r, the seconds of the slowest stage's passes over the mean stage's, and the theory with such a stage,
              which sets the pace: 1 - M / (r M + S - 1)
    step      of the whole step, with the norm and the update
    MB        layers' inputs that the first stage keeps at its peak, in the replay

Huang et al. 2019 (GPipe), Narayanan et al. 2019 and 2021 (1F1B). Run: python benchmarks/pipeline.py [4x8 8x16 16x64]
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")

import jax
import numpy as np

from areca import runtime
from areca.config import DataConfig, ModelConfig, OptimizerConfig, ParallelConfig, PipelineConfig, RunConfig
from areca.model.layout import Layout
from areca.pathways.graph import Part, Step
from areca.pathways.program import Program
from areca.pathways.schedules import SCHEDULES, Schedule, bubble
from areca.pathways.seeing.replay import measure, replay, steps_of
from areca.train.pipeline.run import OverStages
from areca.train.step import abstract_state, compile_step, first_state

MODEL = ModelConfig(vocab_size=512, d_model=96, n_layers=32, n_heads=4, d_ff=384)
CONTEXT, SEQUENCES = 64, 2  # tokens of a sequence, sequences of a microbatch
PASSES = ("forward of", "backward of", "head", "embed", "embedding")
STEPS = 5


def over_stages(stages: int, microbatches: int, schedule: Schedule) -> OverStages:
    config = RunConfig(
        model=MODEL.resolved(), data=DataConfig("", CONTEXT), tokens=1, optimizer=OptimizerConfig(),
        parallel=ParallelConfig(remat="block"), pipeline=PipelineConfig(stages, microbatches, schedule),
    )  # fmt: skip
    return OverStages(config, abstract_state(config.model, config.optimizer))


def started(over: OverStages, microbatches: int) -> tuple[Any, Any, np.ndarray]:
    """The step, its first state, and tokens."""
    batch = microbatches * SEQUENCES
    step = over.program(batch, CONTEXT)
    state = over.place(first_state(over.config.model, over.config.optimizer, 0))
    return step, state, np.random.default_rng(0).integers(0, 512, (batch, CONTEXT + 1)).astype(np.int32)


def seconds_of_programs() -> dict[str, float]:
    over = over_stages(1, 4, "1f1b")
    _, state, tokens = started(over, 4)
    measured = measure(over.graphs[len(tokens)], over.inputs(state, tokens, 1e-2), rounds=5)
    over.close()
    return {name: seconds for (name, _), seconds in measured.by_name.items()}


def one(stages: int, microbatches: int, schedule: Schedule, programs: dict[str, float]) -> None:
    over = over_stages(stages, microbatches, schedule)
    with mock.patch.object(Program, "compiled", return_value=None):  # it is not run
        over.program(microbatches * SEQUENCES, CONTEXT)
    over.close()
    graph = over.graphs[microbatches * SEQUENCES]

    def seconds(step: Step, part: Part) -> float:
        return programs[step.name] if step.kind == "program" else 0.0

    def passes(step: Step, part: Part) -> float:
        return seconds(step, part) if step.name.startswith(PASSES) else 0.0

    inputs = [s for s in steps_of(graph) if s.name == "forward of a layer"]
    each = SEQUENCES * CONTEXT * MODEL.d_model * 4
    only = replay(graph, passes, {part.outs[0][0]: each for s in inputs for part in s.parts})
    whole = replay(graph, seconds)
    slowest = max(only.busy.values()) / statistics.fmean(only.busy.values())
    paced = 1 - microbatches / (slowest * microbatches + stages - 1)
    print(
        f"{stages:2d} x {microbatches:2d} {schedule:<5} theory {bubble(stages, microbatches):6.1%}  passes"
        f" {only.bubble:6.1%}  slowest {slowest:.2f}: {paced:6.1%}  step {whole.bubble:6.1%}  "
        f"{only.peak['stage 0'] / 1e6:6.2f} MB  {len(steps_of(graph)):,} nodes",
        flush=True,
    )


def here(stages: int, microbatches: int, programs: dict[str, float]) -> None:
    over = over_stages(stages, microbatches, "1f1b")
    step, state, tokens = started(over, microbatches)
    times = []
    for _ in range(STEPS + 1):
        begun = time.perf_counter()
        state, metrics = step(state, tokens, 1e-2)
        np.asarray(metrics)
        times.append(time.perf_counter() - begun)
    over.close()
    nodes = steps_of(over.graphs[len(tokens)])
    alone = sum(programs[s.name] * len(s.parts) for s in nodes if s.kind == "program")
    taken = statistics.median(times[1:])
    print(f"{stages:2d} x {microbatches:2d} here: a step takes {taken:.2f} s, its programs one by one {alone:.2f} s")


def beside_spmd(stages: int, microbatches: int, meshes: tuple[tuple[int, int], ...]) -> None:
    """The step on the stages beside one program over a mesh of as many devices (data x model)."""
    over = over_stages(stages, microbatches, "1f1b")
    step, state, tokens = started(over, microbatches)
    config = over.config

    def pipelined() -> None:
        nonlocal state
        state, metrics = step(state, tokens, 1e-2)
        np.asarray(metrics)

    programs: dict[tuple[int, int], Callable[[], None]] = {}
    for data, model in meshes:
        layout = Layout(data, model, "block")
        mesh = layout.mesh()
        abstract = abstract_state(config.model, config.optimizer, layout, mesh)
        compiled = compile_step(config.model, config.optimizer, abstract, len(tokens), CONTEXT, layout, mesh)
        lies = [a.sharding for a in jax.tree.leaves(abstract)]
        leaves, tree = jax.tree.flatten(first_state(config.model, config.optimizer, 0))
        held = [jax.tree.unflatten(tree, [jax.device_put(a, s) for a, s in zip(leaves, lies, strict=True)])]
        given = [
            jax.device_put(a, s)
            for a, s in zip((tokens, np.float32(1e-2)), compiled.input_shardings[0][-2:], strict=True)
        ]

        def spmd(compiled: Any = compiled, held: list[Any] = held, given: list[Any] = given) -> None:
            held[0], metrics = compiled(held[0], *given)
            np.asarray(metrics)

        programs[data, model] = spmd
    times: dict[Any, list[float]] = {}
    for turn in range(STEPS + 1):
        for name, run in [("pipeline", pipelined), *programs.items()][:: 1 if turn % 2 else -1]:
            begun = time.perf_counter()
            run()
            if turn:
                times.setdefault(name, []).append(time.perf_counter() - begun)
    over.close()
    tokens_of_step = len(tokens) * CONTEXT
    for data, model in meshes:
        pairs = zip(times[data, model], times["pipeline"], strict=True)
        low, middle, high = statistics.quantiles([theirs / ours for theirs, ours in pairs], n=4)
        rates = [tokens_of_step / statistics.median(times[n]) for n in ("pipeline", (data, model))]
        rest = 1 - bubble(stages, microbatches)
        print(
            f"{stages:2d} x {microbatches:2d} {rates[0]:,.0f} tokens/s, SPMD over {data} x {model} {rates[1]:,.0f}:"
            f" {middle:.3f} ({low:.3f} to {high:.3f}) of it; with bubbles ({rest:.2f} is left) {middle * rest:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    runtime.prepare()  # programs that were compiled before come from the cache
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    sizes = [tuple(map(int, size.split("x"))) for size in sys.argv[1:] or ("4x8", "8x16", "16x64")]
    measured = seconds_of_programs()
    print(", ".join(f"{name} {1e3 * s:.2f} ms" for name, s in measured.items() if name.startswith(PASSES)))
    for stages, microbatches in sizes:
        for schedule in SCHEDULES:
            one(stages, microbatches, schedule, measured)
    here(*sizes[0], measured)
    for stages, microbatches in sizes:
        wide = max(m for m in range(1, MODEL.n_heads + 1) if stages % m == 0 and MODEL.n_heads % m == 0)
        beside_spmd(stages, microbatches, ((stages, 1), (stages // wide, wide)))
