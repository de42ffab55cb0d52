"""Which parameters each stage of a pipeline holds: a model cut into parts, and parts of a state joined again.

A part is a Decoder that has some of the parameters and None in place of the others: the input's embedding; learned
positions; each group of layers that one program computes; and what comes after the last layer (its norm, and the
output's embedding if it is not the input's). Parts, and not stages, are what programs are made for, so that how many
stages hold them leaves no trace in the numbers. Shared embeddings are needed by the first stage and by the last, which
both hold them.

Legend: L layers, V vocabulary, D model width, S stages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from areca.errors import ConfigError
from areca.model.config import ModelConfig
from areca.model.counts import attention_flops_per_token, count_params
from areca.model.parameters import Decoder, Layers
from areca.train.islands.overlap import bounds

NO_LAYERS: Any = Layers(**{f.name: None for f in fields(Layers)})  # pyright: ignore[reportArgumentType]
NOTHING: Any = Decoder(embedding=None, layers=NO_LAYERS, norm=None)  # pyright: ignore[reportArgumentType]
TOP = ("norm", "norm_bias", "output")


@dataclass(frozen=True)
class Part:
    """Parameters that are updated together: leaves of the model (`names`), or the layers from `first` to `end`."""

    name: str
    stages: tuple[int, ...]  # that hold it
    names: tuple[str, ...] = ()
    first: int = 0
    end: int = 0

    def of(self, tree: Any) -> Any:
        """This part of a Decoder, or of a state with Decoders in it."""
        return jax.tree.map(lambda x: self._of(x) if isinstance(x, Decoder) else x, tree, is_leaf=_is_decoder)

    def _of(self, whole: Decoder) -> Decoder:
        if self.end:
            return replace(NOTHING, layers=jax.tree.map(lambda a: _rows(a, self.first, self.end), whole.layers))
        return replace(NOTHING, **{name: getattr(whole, name) for name in self.names})


def _is_decoder(x: Any) -> bool:
    return isinstance(x, Decoder)


def _rows(a: Any, first: int, end: int) -> Any:
    if isinstance(a, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((end - first, *a.shape[1:]), a.dtype)
    return a[first:end]


def groups(model: ModelConfig, layers: int) -> list[tuple[int, int]]:
    """(first layer, end) of each group of at most `layers` layers. ConfigError where there can't be such groups."""
    if not 1 <= layers <= model.n_layers:
        raise ConfigError(
            f"pipeline.layers is {layers} and the model has {model.n_layers} layers; choose a number from 1 to "
            f"{model.n_layers}."
        )
    return bounds(model.n_layers, -(-model.n_layers // layers))


def layers_of_stages(model: ModelConfig, layers: int, stages: int, context: int) -> list[list[tuple[int, int]]]:
    """The groups of layers of each stage, in order, so that the slowest stage takes the least.

    Times are FLOPs a token: of a layer 4 forward passes (its backward pass computes it again), of the last stage's
    logits 3. ConfigError for more stages than groups.
    """
    found = groups(model, layers)
    if not 1 <= stages <= len(found):
        few = f"{model.n_layers} layers" + (f" in programs of {layers}" if layers > 1 else "")
        raise ConfigError(
            f"pipeline.stages is {stages} and the model has {few}; choose a number from 1 to {len(found)}."
        )
    c = model.resolved()
    each = 8.0 * count_params(c).non_embedding / c.n_layers + 4 / 3 * attention_flops_per_token(c, context) / c.n_layers
    logits = 6.0 * c.vocab_size * c.d_model
    costs = [each * (end - first) for first, end in found]
    # cuts[s][n]: (seconds of the slowest, start of the last) of s + 1 stages over the first n groups
    total = [sum(costs[:n]) for n in range(len(costs) + 1)]
    cuts = [{n: (total[n] + (logits if stages == 1 else 0.0), 0) for n in range(1, len(costs) + 1)}]
    for s in range(1, stages):
        last = logits if s == stages - 1 else 0.0
        cuts.append({
            n: min((max(cuts[-1][k][0], total[n] - total[k] + last), k) for k in range(s, n))
            for n in range(s + 1, len(costs) + 1)
        })  # fmt: skip
    ends = [len(found)]
    for s in reversed(range(1, stages)):
        ends.insert(0, cuts[s][ends[0]][1])
    return [found[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def parts(model: ModelConfig, layers_of: Sequence[Sequence[tuple[int, int]]]) -> list[Part]:
    """All parts of a model, in the order in which their norms are joined."""
    last = len(layers_of) - 1
    found = [Part("embedding", (0, last) if model.tied and last else (0,), ("embedding",))]
    if model.positions == "learned":
        found.append(Part("positions", (0,), ("positions",)))
    for s, held in enumerate(layers_of):
        found += [Part(f"layers {first} to {end - 1}", (s,), first=first, end=end) for first, end in held]
    return [*found, Part("top", (last,), TOP)]


def merge(*held: Decoder) -> Decoder:
    """Parts with different leaves as one Decoder; at most one of them has layers."""
    found = {f.name: [v for d in held if (v := getattr(d, f.name)) is not None] for f in fields(Decoder)}
    layers = [d.layers for d in held if jax.tree.leaves(d.layers)]
    one = {name: values[0] if values else None for name, values in found.items()}
    return Decoder(**{**one, "layers": layers[0] if layers else NO_LAYERS})


def join(held: Sequence[Any]) -> Any:
    """The whole of all parts, in order: of Decoders, or of states with Decoders in them, on the host."""
    return jax.tree.map(lambda *each: _join(each) if _is_decoder(each[0]) else each[0], *held, is_leaf=_is_decoder)


def _join(held: Sequence[Decoder]) -> Decoder:
    layers = [d.layers for d in held if jax.tree.leaves(d.layers)]
    joined = jax.tree.map(lambda *each: np.concatenate([np.asarray(a) for a in each]), *layers)
    return replace(merge(*(replace(d, layers=NO_LAYERS) for d in held)), layers=joined)


def add(given: Sequence[Decoder], part: Part) -> Decoder:
    """The sum, in their order, of the gradients of a part that are in `given`, each of some parameters."""
    if part.end:
        return given[0]
    sums = {}
    for name in part.names:
        has = [v for d in given if (v := getattr(d, name)) is not None]
        sums[name] = None if not has else has[0] if len(has) == 1 else jnp.add(*has)
    return replace(NOTHING, **sums)
