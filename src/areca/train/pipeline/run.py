"""One model trained over the stages of a pipeline: a stage is an island that holds its own layers and no others.

    for each microbatch:  embedding, the first stage's layers, ... the last stage's layers, head; then the way back,
                          each layer computed again from its input (remat "block"; Chen et al. 2016)
    on each stage:        its gradients, added up in the microbatches' order (left fold)
    then:                 one norm over all parts of the model, clipping, each part's update where it lies

It is one graph of the controller (`areca.pathways`), whose order of nodes is the schedule (`areca.pathways.schedules`).
Programs are made for parts of the model (`areca.train.pipeline.stages`), not for stages, and everything that joins
parts does so in their order: the trajectory depends on the microbatches and the parts, and on one stage, on sixteen,
and with either schedule it has the same bits. Shared embeddings, which two stages hold, are compared every
`islands.digest_every` steps.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from areca.config import RunConfig
from areca.errors import ConfigError
from areca.model.layout import Layout
from areca.model.parameters import Decoder
from areca.pathways.controller import Controller
from areca.pathways.future import Future
from areca.pathways.graph import Graph
from areca.pathways.island import Island
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline
from areca.train.identity import layout_of
from areca.train.islands.exchange import digest
from areca.train.islands.segments import TOKENS, Cut
from areca.train.islands.values import Metrics
from areca.train.pipeline.stages import Part, groups, join, layers_of_stages, parts
from areca.train.pipeline.step import Step
from areca.train.run import Run
from areca.train.step import TrainState


def check(config: RunConfig) -> None:
    """ConfigError for a pipeline that can't train this run."""
    p = config.pipeline
    layers_of_stages(config.model, p.layers, p.stages, config.data.context)
    for _, batch in config.batch.ramp:
        layout_of(config).check_batch("a microbatch of batch.ramp", microbatch_size(batch, p.microbatches))
    if config.islands.digest_every < 1:
        raise ConfigError(f"islands.digest_every is {config.islands.digest_every}; it must be at least 1.")
    if config.batch.accumulate > 1:
        raise ConfigError(
            f"batch.accumulate is {config.batch.accumulate}, and a pipeline takes a batch in microbatches; set it "
            "to 1 and choose more pipeline.microbatches."
        )
    if config.noise_parts:
        raise ConfigError(
            "the gradient noise scale is not measured in a pipeline; set pipeline.microbatches to 0 for it."
        )
    stage_islands(config)
    _cut(config)


def microbatch_size(batch: int, microbatches: int) -> int:
    """Sequences of each microbatch. ConfigError where they can't be equal."""
    if microbatches < 1 or batch % microbatches:
        raise ConfigError(
            f"pipeline.microbatches is {microbatches}, which does not cut a batch of {batch} sequences into equal "
            "parts; choose one that does."
        )
    return batch // microbatches


def stage_islands(config: RunConfig) -> list[Island]:
    """An island for each stage, of the devices in their order. ConfigError when they are too few."""
    have, stages = jax.devices(), config.pipeline.stages
    data, model = config.parallel.data, config.parallel.model
    if stages * data * model > len(have):
        raise ConfigError(
            f"pipeline.stages is {stages}, of {data} x {model} devices each, which needs {stages * data * model} and "
            f"there are {len(have)}; ask for fewer stages or a smaller mesh."
        )
    each = data * model
    return [Island(f"stage {s}", have[s * each : (s + 1) * each], (data, model)) for s in range(stages)]


def _cut(config: RunConfig) -> Cut:
    cuts = len(groups(config.model, config.pipeline.layers))
    return Cut(config.model, cuts, layout_of(config), config.optimizer.z_loss)


class PipelineState:
    """The state of a run over its stages: each part's parameters and moments, and the count of steps."""

    def __init__(self, step: Future, params: list[Future], moments: list[Future]) -> None:
        self.step, self.held, self.moments = step, params, moments

    @property
    def params(self) -> Decoder:
        """All parameters, on the host."""
        return join([_on_host(f) for f in self.held])

    def local(self) -> TrainState:
        """All of it, on the host."""
        return TrainState(_on_host(self.step), self.params, join([_on_host(f) for f in self.moments]))


def _on_host(future: Future) -> Any:
    return jax.tree.unflatten(future.tree, [np.array(a) for a in future.arrays()])


class OverStages:
    """The stages of a run, and its step over them. `abstract` is the state's shapes (a TrainState)."""

    def __init__(self, config: RunConfig, abstract: TrainState, timeline: Timeline | None = None) -> None:
        self.config, self.layout, self.timeline = config, layout_of(config), timeline
        self.cut, self.islands = _cut(config), stage_islands(config)
        p = config.pipeline
        self.layers_of = layers_of_stages(config.model, p.layers, p.stages, config.data.context)
        self.parts = parts(config.model, self.layers_of)
        self.controller = Controller(self.islands, timeline=timeline)
        self.client = self.controller.client("train")
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), abstract)
        self.shapes = [(part.of(shapes.params), part.of(shapes.optimizer)) for part in self.parts]
        self.tokens = None if self.layout.devices == 1 else P(None, *TOKENS)
        self.steps = 0
        embedding, self.shared = self.shapes[0][0], len(self.parts[0].stages) > 1
        self.digest = Program("digest", digest, [embedding], specs=[self.specs(embedding)])
        self.graphs: dict[int, Graph] = {}  # by batch
        self.programs: dict[Any, Program] = {}  # by what they compute, for all sizes of a batch

    def place(self, state: TrainState) -> PipelineState:
        """A state of the host or of one device, each part where it is held."""
        step = self.client.put(state.step, self.islands[:1], None, "step")

        def put(part: Part, tree: Any, name: str) -> Future:
            mine = jax.tree.map(jnp.copy, part.of(tree))  # what two parts have, as Adam's count, is updated twice
            return self.client.put(mine, self.of(part), self.specs(mine), f"{name} of {part.name}", given=True)

        params = [put(part, state.params, "parameters") for part in self.parts]
        return PipelineState(step, params, [put(part, state.optimizer, "moments") for part in self.parts])

    def of(self, part: Part) -> list[Island]:
        """The islands that hold a part."""
        return [self.islands[s] for s in part.stages]

    def specs(self, tree: Any) -> Any:
        """How parameters or moments are cut over a stage's mesh."""
        return None if self.layout.devices == 1 else self.layout.specs(tree)

    def ends(self) -> list[Island]:
        """The islands that read tokens: the first and the last, and all where attention is masked by document."""
        if self.config.model.document_mask:
            return self.islands
        return list(dict.fromkeys((self.islands[0], self.islands[-1])))

    def program(self, batch: int, context: int) -> Callable[[PipelineState, Any, Any], tuple[PipelineState, Metrics]]:
        """The step for one batch size: programs are compiled for their stages and the graph is traced, here."""
        shape = self._microbatches(batch, context)
        example, n = self.client.example, len(self.parts)
        examples = [
            example(jax.ShapeDtypeStruct(shape, jnp.int32), self.ends(), self.tokens),
            example(jax.ShapeDtypeStruct((), jnp.float32), self.islands),
            example(jax.ShapeDtypeStruct((), jnp.int32), self.islands[:1]),
            *(example(of[k], self.of(part), self.specs(of[k]))
              for k in (0, 1) for part, of in zip(self.parts, self.shapes, strict=True)),
        ]  # fmt: skip
        traced = Step(self, shape)
        graph = self.graphs[batch] = self.client.trace(traced.trace, *examples, name=f"step of {batch}")

        def step(state: PipelineState, tokens_BS: Any, rate: Any) -> tuple[PipelineState, Metrics]:
            count, values, *held = self.client.submit(graph, *self.inputs(state, tokens_BS, rate))
            self.steps += 1
            look = self.shared and self.steps % self.config.islands.digest_every == 0
            return PipelineState(count, held[:n], held[n:]), Metrics(
                values, self.client.call(self.digest, held[0]) if look else None
            )

        return step

    def inputs(self, state: PipelineState, tokens_BS: Any, rate: Any) -> list[Future]:
        """What a step's graph takes."""
        tokens_MBS = np.asarray(tokens_BS)
        tokens_MBS = tokens_MBS.reshape(self._microbatches(tokens_MBS.shape[0], tokens_MBS.shape[1] - 1))
        tokens = self.client.put(tokens_MBS, self.ends(), self.tokens, "tokens")
        rate = self.client.put(np.float32(rate), self.islands, None, "learning rate")
        return [tokens, rate, state.step, *state.held, *state.moments]

    def _microbatches(self, batch: int, context: int) -> tuple[int, int, int]:
        count = self.config.pipeline.microbatches
        return count, microbatch_size(batch, count), context + 1

    def close(self) -> None:
        """Waits for what is enqueued and ends the controller."""
        self.controller.close()
        if self.timeline is not None:
            self.timeline.close()


class PipelineRun(Run):
    """A run whose steps are taken over stages. The record, saves and judgement are those of any run."""

    over: OverStages | None = None

    def _program(self, batch: int, layout: Layout, mesh: Any) -> Any:
        if self.over is None:
            self.over = OverStages(self.config, self.abstract)
        return self.over.program(batch, self.config.data.context)

    def _place(self, state: Any) -> Any:
        assert self.over is not None
        return self.over.place(state)

    def _local(self) -> Any:
        state = self.state.local()
        put = jax.tree.map(lambda a, like: jax.device_put(a, like.sharding), state.params, self.abstract.params)
        return replace(state, params=put)  # to evaluate, on the first stage's devices

    def __exit__(self, *error: object) -> None:
        if self.over is not None:
            self.over.close()
        super().__exit__(*error)
