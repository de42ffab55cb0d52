"""The gradient of a decoder's loss cut into programs, so that one part of it can travel while the next is computed.

    x, last = forward(params, tokens)               each layer's input, and what the last layer gives
    head, parts, dx = head(params, last, tokens)    the loss; gradients of the last norm and of the output's embedding
    layers, dx = segment(params, x, dx, first)      for each segment of layers, from the last to the first (and the
                                                    tokens, where attention is masked by document)
    embedding = embedding(params, tokens, dx)       gradients of the input's embedding and of learned positions
    assemble(...)                                   a gradient of all parameters

A layer keeps its input and nothing else, and is computed again in its backward pass: remat "block" (Chen et al. 2016),
cut where it recomputes anyway. An XLA program's outputs appear when all of it has ended; hence programs, not one. The
model's mathematics are `areca.model.decoder`'s. How many segments there are decides low bits, so it is part of a run.

Legend: B sequences of a shard, S tokens of each (T + 1), T positions, D model width, L layers, l layers of a segment.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from areca.errors import ConfigError
from areca.model import decoder
from areca.model.attention import attention
from areca.model.config import ModelConfig
from areca.model.layout import DATA, MODEL, Layout
from areca.model.loss import Parts, Split, cross_entropy
from areca.model.parameters import Decoder, Layers, unstack
from areca.train.islands.overlap import bounds

ACTIVATION = P(DATA, None, MODEL)  # x_BTD and dx_BTD between layers
STACK = P(None, *ACTIVATION)  # x_LBTD
TOKENS = P(DATA)

Tree = dict[str, Array]


@dataclass(frozen=True)
class Cut:
    """A model's gradient in segments over an island's mesh: `segments` of nearly equal numbers of layers, or of
    `lengths`, layers of each from the last ones to the first.

    The functions here don't name devices: what is compiled for one island's mesh is compiled for another's.
    ConfigError for segments that can't be, or a layout with another remat than "block".
    """

    model: ModelConfig
    segments: int
    layout: Layout
    z_loss: float = 1e-4
    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        layers = self.model.n_layers
        if not 1 <= self.segments <= layers:
            raise ConfigError(
                f"islands.segments is {self.segments} and the model has {layers} layers; choose from 1 to {layers}."
            )
        if self.lengths and (
            sum(self.lengths) != layers or min(self.lengths) < 1 or len(self.lengths) != self.segments
        ):
            raise ConfigError(
                f"islands.lengths is {list(self.lengths)}, for {self.segments} segments of a model of {layers} layers; "
                "give each segment's layers, at least 1, that together are all."
            )
        if self.layout.remat != "block":
            raise ConfigError(
                f"remat is {self.layout.remat!r}, and a backward pass in segments keeps each layer's input only; set "
                "parallel.remat to 'block'."
            )
        self.layout.check(self.model)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """(first layer, end) of each segment, from the first layers to the last."""
        if not self.lengths:
            return bounds(self.model.n_layers, self.segments)
        ends = [0, *accumulate(reversed(self.lengths))]
        return list(pairwise(ends))


def forward(
    cut: Cut, params: Decoder, tokens_BS: Int[Array, "B S"]
) -> tuple[Float[Array, "L B T D"], Float[Array, "B T D"]]:
    """Each layer's input, and the last layer's output."""

    def local(params: Decoder, tokens_BS: Array) -> tuple[Array, Array]:
        return _layers(cut, params.layers, cut.model.n_layers, _embedded(cut, params, tokens_BS), tokens_BS)

    return _on_mesh(cut, local, (cut.layout.specs(params), TOKENS), (STACK, ACTIVATION))(params, tokens_BS)


def embed(cut: Cut, params: Decoder, tokens_BS: Int[Array, "B S"]) -> Float[Array, "B T D"]:
    """The first layer's input; of the parameters only the embedding and learned positions are read."""
    local = partial(_embedded, cut)
    return _on_mesh(cut, local, (cut.layout.specs(params), TOKENS), ACTIVATION)(params, tokens_BS)


def through(
    cut: Cut, count: int, layers: Layers, x_BTD: Float[Array, "B T D"], *tokens_BS: Int[Array, "B S"]
) -> tuple[Float[Array, "l B T D"], Float[Array, "B T D"]]:
    """Each of `count` layers' input, and the last one's output, from the first one's input; `layers` are theirs.

    With `document_mask` layers read where documents end off the tokens, here and in `segment`; without it none come.
    """
    local = lambda layers, x_BTD, *tokens_BS: _layers(cut, layers, count, x_BTD, *tokens_BS)  # noqa: E731
    given = (cut.layout.specs(layers), ACTIVATION, *(TOKENS for _ in tokens_BS))
    return _on_mesh(cut, local, given, (STACK, ACTIVATION))(layers, x_BTD, *tokens_BS)


def _embedded(cut: Cut, params: Decoder, tokens_BS: Array) -> Array:
    table_VD = decoder.table(params.embedding, cut.layout)
    return decoder.embed(params, table_VD, tokens_BS[:, :-1], layout=cut.layout)


def _layers(cut: Cut, layers: Layers, count: int, x_BTD: Array, *tokens_BS: Array) -> tuple[Array, Array]:
    c, layout = cut.model.resolved(), cut.layout
    angles, attend = decoder.angles_at(c, x_BTD.shape[1]), _attend(c, *tokens_BS)

    def layer(x_BTD: Array, p: Layers) -> tuple[Array, Array]:
        return decoder.block(c, p, x_BTD, angles, attend, layout), x_BTD

    if not decoder.unrolled(count, layout):
        x_BTD, x_LBTD = jax.lax.scan(layer, x_BTD, layers)
        return x_LBTD, x_BTD
    inputs = []
    for p in unstack(layers, count):
        x_BTD, before = layer(x_BTD, p)
        inputs.append(before)
    return jnp.stack(inputs), x_BTD


def _attend(model: ModelConfig, *tokens_BS: Array) -> Callable[[Array, Array, Array], Array]:
    """Attention over the tokens that are read; without them over the whole context, which needs none."""
    return decoder.attention_over(model, tokens_BS[0][:, :-1]) if tokens_BS else attention


def head(
    cut: Cut, params: Decoder, x_BTD: Float[Array, "B T D"], tokens_BS: Int[Array, "B S"]
) -> tuple[Tree, Parts, Float[Array, "B T D"]]:
    """Gradients of the last norm (`norm`, `norm_bias`) and of the output's embedding (`output`, also where it is the
    input's), the loss's parts, and the gradient of the last layer's output."""
    top = {"norm": params.norm, "output": params.embedding if params.output is None else params.output}
    if params.norm_bias is not None:
        top["norm_bias"] = params.norm_bias

    def local(params: Decoder, top: Tree, x_BTD: Array, tokens_BS: Array) -> tuple[Tree, Parts, Array]:
        c, layout = cut.model.resolved(), cut.layout

        def objective(top: Tree, x_BTD: Array) -> tuple[Array, Parts]:
            norm = replace(params, norm=top["norm"], norm_bias=top.get("norm_bias"))
            last_BTD = decoder.last_norm(c, norm, x_BTD, layout)
            table_VD = layout.rows_over_model(decoder.table(top["output"], layout))
            return cross_entropy(last_BTD, table_VD, tokens_BS[:, 1:], cut.z_loss, Split.of(layout, c.vocab_size))

        (grads, dx_BTD), parts = jax.grad(objective, (0, 1), has_aux=True)(top, x_BTD)
        if layout.devices > 1:
            parts = Parts(*(jax.lax.psum(p, (DATA, MODEL)) for p in parts))
        return grads, parts, dx_BTD

    specs = cut.layout.specs(top)
    mapped = _on_mesh(cut, local, (cut.layout.specs(params), specs, ACTIVATION, TOKENS), (specs, P(), ACTIVATION))
    return mapped(params, top, x_BTD, tokens_BS)


def segment(
    cut: Cut,
    count: int,
    params: Decoder,
    x_LBTD: Float[Array, "L B T D"],
    dx_BTD: Float[Array, "B T D"],
    first: Int[Array, ""],
    *tokens_BS: Int[Array, "B S"],
) -> tuple[Layers, Float[Array, "B T D"]]:
    """Gradients of the `count` layers from `first` on, [l, ...], and of their input, from that of their output.

    `first` is an argument of the program, so that one program serves all segments of equal length.
    """

    def local(layers: Layers, x_LBTD: Array, dx_BTD: Array, first: Array, *tokens_BS: Array) -> tuple[Layers, Array]:
        c, layout = cut.model.resolved(), cut.layout
        angles, attend = decoder.angles_at(c, x_LBTD.shape[2]), _attend(c, *tokens_BS)

        def backward(dx_BTD: Array, i: Array) -> tuple[Array, Layers]:
            take = partial(jax.lax.dynamic_index_in_dim, index=first + i, keepdims=False)
            run = lambda p, x_BTD: decoder.block(c, p, x_BTD, angles, attend, layout)  # noqa: E731
            _, pull = jax.vjp(run, jax.tree.map(take, layers), take(x_LBTD))
            grads, dx_BTD = pull(dx_BTD)
            return dx_BTD, grads

        # Scanned whatever the model's depth: written out, a segment was no faster (docs/log.md).
        dx_BTD, grads = jax.lax.scan(backward, dx_BTD, jnp.arange(count), reverse=True)
        return grads, dx_BTD

    specs = cut.layout.specs(params).layers
    given = (specs, STACK, ACTIVATION, P(), *(TOKENS for _ in tokens_BS))
    return _on_mesh(cut, local, given, (specs, ACTIVATION))(params.layers, x_LBTD, dx_BTD, first, *tokens_BS)


def embedding(cut: Cut, params: Decoder, tokens_BS: Int[Array, "B S"], dx_BTD: Float[Array, "B T D"]) -> Tree:
    """Gradients of the input's embedding (`embedding`) and of learned positions (`positions`), from dx of layer 0."""
    bottom = {"embedding": params.embedding}
    if params.positions is not None:
        bottom["positions"] = params.positions

    def local(params: Decoder, bottom: Tree, tokens_BS: Array, dx_BTD: Array) -> Tree:
        def embed(bottom: Tree) -> Array:
            positions = replace(params, positions=bottom.get("positions"))
            table_VD = decoder.table(bottom["embedding"], cut.layout)
            return decoder.embed(positions, table_VD, tokens_BS[:, :-1], layout=cut.layout)

        return jax.vjp(embed, bottom)[1](dx_BTD)[0]

    specs = cut.layout.specs(bottom)
    mapped = _on_mesh(cut, local, (cut.layout.specs(params), specs, TOKENS, ACTIVATION), specs)
    return mapped(params, bottom, tokens_BS, dx_BTD)


def assemble(model: ModelConfig, head: Tree, layers: list[Layers], embedding: Tree) -> Decoder:
    """A gradient of all parameters from its parts; `layers` are the segments', from the first layers to the last.

    A shared embedding's gradient is the output's part plus the input's.
    """
    return Decoder(
        embedding=head["output"] + embedding["embedding"] if model.tied else embedding["embedding"],
        layers=jax.tree.map(lambda *each: jnp.concatenate(each), *layers),
        norm=head["norm"],
        output=None if model.tied else head["output"],
        positions=embedding.get("positions"),
        norm_bias=head.get("norm_bias"),
    )


@dataclass(frozen=True, eq=False)
class Piece:
    """A function to compile for an island, the shapes it takes, and how arguments and results are cut over its mesh.

    Fields are the arguments of `areca.pathways.program.Program`. Where a spec is None, arrays are whole everywhere.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    specs: tuple[Any, ...]
    out_specs: Any


@dataclass(frozen=True)
class Pieces:
    """The programs of one shard's gradient. `segments` are (program, first layer) in the order they are computed."""

    forward: Piece
    head: Piece
    segments: list[tuple[Piece, int]]
    embedding: Piece


def pieces(cut: Cut, params: Decoder, sequences: int, context: int) -> Pieces:
    """The programs for shards of `sequences` of `context` + 1 tokens; `params` may be abstract.

    ConfigError where the mesh's data axis does not divide the sequences.
    """
    cut.layout.check_batch("a shard of the batch", sequences)
    cut.model.check_context("context", context)
    shape = sequences, context, cut.model.d_model
    dtype = cut.layout.compute_dtype()
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    tokens = jax.ShapeDtypeStruct((sequences, context + 1), jnp.int32)
    x = jax.ShapeDtypeStruct(shape, dtype)
    stack = jax.ShapeDtypeStruct((cut.model.n_layers, *shape), dtype)
    first = jax.ShapeDtypeStruct((), jnp.int32)
    lies = cut.layout.specs(abstract)
    top = {"norm": lies.norm, "output": lies.embedding}
    top |= {} if lies.norm_bias is None else {"norm_bias": lies.norm_bias}
    bottom = {f.name: s for f in fields(Decoder) if f.name in ("embedding", "positions")
              and (s := getattr(lies, f.name)) is not None}  # fmt: skip

    masked = cut.model.document_mask

    def of_layers(count: int) -> Piece:
        return Piece(
            f"backward of {count} layers",
            partial(segment, cut, count),
            (abstract, stack, x, first, *([tokens] if masked else [])),
            (lies, STACK, ACTIVATION, P(), *([TOKENS] if masked else [])),
            (lies.layers, ACTIVATION),
        )

    by_count = {count: of_layers(count) for count in {end - first for first, end in cut.bounds}}
    return Pieces(
        Piece("forward", partial(forward, cut), (abstract, tokens), (lies, TOKENS), (STACK, ACTIVATION)),
        Piece("head", partial(head, cut), (abstract, x, tokens), (lies, ACTIVATION, TOKENS), (top, P(), ACTIVATION)),
        [(by_count[end - first], first) for first, end in reversed(cut.bounds)],
        Piece("embedding", partial(embedding, cut), (abstract, tokens, x), (lies, TOKENS, ACTIVATION), bottom),
    )


def _on_mesh(cut: Cut, local: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """A function of one device's pieces as one of whole arrays, over whichever mesh of the layout's sizes they lie."""
    if cut.layout.devices == 1:
        return local
    mesh = AbstractMesh((cut.layout.data, cut.layout.model), (DATA, MODEL))
    return cut.layout.on_mesh(local, mesh, in_specs, out_specs)  # pyright: ignore[reportArgumentType]
