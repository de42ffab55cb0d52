"""The graph of a pipeline's step: every microbatch forward and back, one norm, an update where the parameters lie.

    forward   embed; for each part with layers, keeping each layer's input; on the last stage the head
    back      head's gradients, then each part's from the last layers to the first, then the embedding's
    update    squares of each part's gradient -> one norm -> each part's parameters and moments -> what is logged

A stage's gradients are added up as they come, in the microbatches' order, in memory that is passed from program to
program; times 1 / M they are the batch's (`areca.train.islands.exchange.sum_shards`). Programs are made for parts of
the model (`areca.train.pipeline.stages`) and what joins parts does so in their order, so no number depends on which
stage holds them.

Legend: M microbatches, B sequences of one, S tokens of each (T + 1), T positions, D model width, L layers of a part.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import PartitionSpec as P

from areca.config import RunConfig
from areca.model.loss import Parts
from areca.model.parameters import Decoder
from areca.pathways import schedules
from areca.pathways.graph import Graph, Value
from areca.pathways.program import Program
from areca.train.islands import segments
from areca.train.islands.segments import ACTIVATION, STACK, TOKENS, Cut
from areca.train.pipeline.stages import NOTHING, TOP, Part, add, merge
from areca.train.step import clip_scale, update

if TYPE_CHECKING:
    from areca.train.pipeline.run import OverStages


class Step:
    """The graph of a step for microbatches of one shape (M, sequences, T + 1)."""

    def __init__(self, over: "OverStages", shape: tuple[int, int, int]) -> None:
        self.over, self.cut, self.shape = over, over.cut, shape
        self.microbatches = shape[0]
        self.last = over.islands[-1]

    def trace(self, g: Graph, tokens: Value, rate: Value, step: Value, *state: Value) -> list[Value]:
        """One step: see the head of this file."""
        over = self.over
        n = len(over.parts)
        params = dict(zip(over.parts, state[:n], strict=True))
        moments = dict(zip(over.parts, state[n:], strict=True))
        sums, losses = self._passes(g, tokens, params)
        return self._update(g, rate, step, params, moments, sums, losses)

    # --- forward and back

    def _passes(self, g: Graph, tokens: Value, params: dict[Part, Value]) -> tuple[dict[str, Value], Value]:
        """The sums of gradients over the microbatches, by what gives them, and of the losses."""
        over, config = self.over, self.over.config.pipeline
        islands, stages = over.islands, config.stages
        held = [[(p, params[p]) for p in over.parts if p.end and p.stages == (s,)] for s in range(stages)]
        bottom = [g.move(v, islands[:1]) for p, v in params.items() if p.names and p.names != TOP]
        top = [g.move(params[over.parts[0]], [self.last])] if over.config.model.tied else []
        top.append(params[over.parts[-1]])
        of_microbatch = self._call(g, "microbatches", lambda t: tuple(t[m] for m in range(self.microbatches)),
                                   [tokens], (TOKENS,) * self.microbatches)  # fmt: skip
        sums = {p.name: self._zeros(g, v) for row in held for p, v in row}
        sums |= {"embedding": self._zeros(g, *bottom), "head": self._zeros(g, *top)}
        losses = self._call(g, "no loss", lambda _: Parts(*jnp.zeros((2,))), [top[-1]], P())
        first = [g.move(t, islands[:1]) for t in of_microbatch]
        targets = [g.move(t, [self.last]) for t in of_microbatch]
        masked = over.config.model.document_mask
        read = [[[g.move(t, [i])] for t in of_microbatch] if masked else [[]] * self.microbatches for i in islands]
        kept: dict[tuple[str, int], Value] = {}
        x: dict[tuple[int, int], Value] = {}  # what goes into a stage, or comes out of the last one
        dx: dict[tuple[int, int], Value] = {}  # its gradient
        for action in schedules.order(config.schedule, stages, self.microbatches):
            s, m = action.stage, action.microbatch
            if not action.backward:
                if s == 0:
                    x[0, m] = self._call(g, "embed", partial(_embed, self.cut), [first[m], *bottom], ACTIVATION)
                out = x.pop((s, m))
                for part, value in held[s]:
                    count = part.end - part.first
                    through = partial(_through, self.cut, count)
                    kept[part.name, m], out = self._call(
                        g, f"forward of {_layers(count)}", through, [value, out, *read[s][m]], (STACK, ACTIVATION)
                    )
                x[s + 1, m] = g.move(out, [islands[min(s + 1, stages - 1)]])
                continue
            if s == stages - 1:
                grads = self._specs(sums["head"])
                sums["head"], losses, back = self._call(
                    g, "head", partial(_head, self.cut),
                    [sums["head"], losses, x.pop((stages, m)), targets[m], *top], (grads, P(), ACTIVATION),
                    donates=(0,),
                )  # fmt: skip
            else:
                back = dx.pop((s + 1, m))
            for part, value in reversed(held[s]):
                count = part.end - part.first
                sums[part.name], back = self._call(
                    g, f"backward of {_layers(count)}", partial(_back, self.cut, count),
                    [sums[part.name], value, kept.pop((part.name, m)), back, *read[s][m]],
                    (self._specs(sums[part.name]), ACTIVATION), donates=(0,),
                )  # fmt: skip
            if s:
                dx[s, m] = g.move(back, [islands[s - 1]])
            else:
                sums["embedding"] = self._call(
                    g, "embedding", partial(_embedding, self.cut), [sums["embedding"], first[m], back, *bottom],
                    self._specs(sums["embedding"]), donates=(0,),
                )  # fmt: skip
        return sums, losses

    def _zeros(self, g: Graph, *values: Value) -> Value:
        """Of the gradients of these parameters; a stage's own, never another's."""
        like = lambda *held: merge(*jax.tree.map(jnp.zeros_like, held))  # noqa: E731
        shapes = merge(*(_tree(v) for v in values))
        return self._call(g, "no gradient", like, list(values), self.over.specs(shapes))

    # --- the update

    def _update(
        self,
        g: Graph,
        rate: Value,
        step: Value,
        params: dict[Part, Value],
        moments: dict[Part, Value],
        sums: dict[str, Value],
        losses: Value,
    ) -> list[Value]:
        over, share = self.over, np.float32(1.0) / np.float32(self.microbatches)
        home, config = over.islands[:1], over.config
        given = {p: [g.move(v, over.of(p)) for v in self._gives(p, sums)] for p in over.parts}
        squares = []
        for p in over.parts:
            mean = partial(_squares, p, share)
            squares.append(g.move(self._call(g, f"norm of {p.name}", mean, given[p], P(), key=_kind(p)), home))
        clip = lambda losses, *squares: _clip(config, share, losses, squares)  # noqa: E731
        control = self._call(g, "norm", clip, [g.move(losses, home), *squares], P())
        everywhere = g.move(control, over.islands)
        held, moved, norms = [], [], []
        for p in over.parts:
            function = partial(_updated, config, p, share)
            lies = self._specs(params[p]), self._specs(moments[p]), P()
            arguments = [params[p], moments[p], g.move(everywhere, over.of(p)), g.move(rate, over.of(p)), *given[p]]
            after, rest, norm = self._call(
                g, f"update of {p.name}", function, arguments, lies, donates=(0, 1), key=_kind(p)
            )
            held.append(after)
            moved.append(rest)
            norms.append(g.move(norm, home))
        count, values = self._call(g, "metrics", _metrics, [step, control, *norms], (P(), P()))
        return [count, values, *held, *moved]

    def _gives(self, part: Part, sums: dict[str, Value]) -> list[Value]:
        """The sums that a part's gradient is in; of shared embeddings the output's before the input's."""
        if part.end:
            return [sums[part.name]]
        if part.name == "embedding" and self.over.config.model.tied:
            return [sums["head"], sums["embedding"]]
        return [sums["head" if part.name == "top" else "embedding"]]

    # --- programs

    def _specs(self, value: Value) -> Any:
        return jax.tree.unflatten(value.tree, value.specs)

    def _call(
        self,
        g: Graph,
        name: str,
        function: Callable[..., Any],
        values: Sequence[Value],
        out_specs: Any,
        donates: Sequence[int] = (),
        key: str = "",
    ) -> Any:
        """A program of these values, one for all of its name (or `key`), shapes and cuts."""
        shapes = tuple((v.tree, tuple((a.shape, str(a.dtype)) for a in v.leaves or ())) for v in values)
        known, of = self.over.programs, (key or name, name.split()[0], shapes)
        if of not in known:
            single = self.over.layout.devices == 1
            known[of] = Program(
                name if not key else name.split()[0] + " of " + key,
                function,
                [_tree(v) for v in values],
                specs=None if single else [self._specs(v) for v in values],
                out_specs=None if single else out_specs,
                donates=donates,
            )
        return g.call(known[of], *values)


def _tree(value: Value) -> Any:
    return jax.tree.unflatten(value.tree, value.leaves or [])


def _layers(count: int) -> str:
    return "a layer" if count == 1 else f"{count} layers"


def _kind(part: Part) -> str:
    """Parts of one kind and of equal shapes have one program."""
    return "layers" if part.end else part.name


def _embed(cut: Cut, tokens_BS: Array, *bottom: Decoder) -> Array:
    return segments.embed(cut, merge(*bottom), tokens_BS)


def _through(cut: Cut, count: int, params: Decoder, x_BTD: Array, *tokens_BS: Array) -> tuple[Array, Array]:
    return segments.through(cut, count, params.layers, x_BTD, *tokens_BS)


def _head(
    cut: Cut, sums: Decoder, losses: Parts, x_BTD: Array, tokens_BS: Array, *top: Decoder
) -> tuple[Decoder, Parts, Array]:
    """The sums with what a microbatch adds: gradients of all after the last layer; the gradient of its output."""
    grads, found, dx_BTD = segments.head(cut, merge(*top), x_BTD, tokens_BS)
    output = {"embedding" if cut.model.tied else "output": grads["output"]}
    more = Decoder(**{**vars(NOTHING), "norm": grads["norm"], "norm_bias": grads.get("norm_bias"), **output})
    return jax.tree.map(jnp.add, sums, more), jax.tree.map(jnp.add, losses, found), dx_BTD


def _back(
    cut: Cut, count: int, sums: Decoder, params: Decoder, x_LBTD: Array, dx_BTD: Array, *tokens_BS: Array
) -> tuple[Decoder, Array]:
    layers, dx_BTD = segments.segment(cut, count, params, x_LBTD, dx_BTD, jnp.zeros((), jnp.int32), *tokens_BS)
    return jax.tree.map(jnp.add, sums, Decoder(**{**vars(NOTHING), "layers": layers})), dx_BTD


def _embedding(cut: Cut, sums: Decoder, tokens_BS: Array, dx_BTD: Array, *bottom: Decoder) -> Decoder:
    grads = segments.embedding(cut, merge(*bottom), tokens_BS, dx_BTD)
    return jax.tree.map(jnp.add, sums, Decoder(**{**vars(NOTHING), **grads}))


def _mean(part: Part, share: np.float32, given: Sequence[Decoder]) -> Decoder:
    """A part's gradient of the whole batch: the mean of the microbatches'."""
    return add([jax.tree.map(lambda a: a * share, d) for d in given], part)


def _squares(part: Part, share: np.float32, *given: Decoder) -> Array:
    return optax.tree.norm(_mean(part, share, given), squared=True)


def _clip(config: RunConfig, share: np.float32, losses: Parts, squares: Sequence[Array]) -> dict[str, Array]:
    """What every part's update needs of the others, and what is logged."""
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    grad_norm = jnp.sqrt(total)
    losses = jax.tree.map(lambda a: a * share, losses)
    return {
        "scale": clip_scale(config.optimizer, grad_norm),
        "finite": jnp.isfinite(losses.loss) & jnp.isfinite(grad_norm),
        "logged": jnp.stack([*losses, grad_norm]),
    }


def _updated(
    config: RunConfig,
    part: Part,
    share: np.float32,
    params: Decoder,
    moments: Any,
    control: dict[str, Array],
    rate: Array,
    *given: Decoder,
) -> tuple[Decoder, Any, Array]:
    """A part's parameters and moments after the step, and the squares of its update's norm and of its own."""
    grads = _mean(part, share, given)
    after, moments, updates = update(
        config.model, config.optimizer, params, moments, grads, control["scale"], control["finite"], rate
    )
    return after, moments, jnp.stack([optax.tree.norm(t, squared=True) for t in (updates, after)])


def _metrics(step: Array, control: dict[str, Array], *squares: Array) -> tuple[Array, Array]:
    """The count of steps, and `areca.train.step.METRICS`."""
    total = squares[0]
    for square in squares[1:]:
        total = total + square
    update_norm, param_norm = jnp.sqrt(total)
    update_norm = jnp.where(control["finite"], update_norm, 0.0)
    values = jnp.concatenate([control["logged"], jnp.stack([update_norm, param_norm])])
    return step + control["finite"].astype(jnp.int32), values
