"""A decoder's parameters: which there are, how they are drawn, and what an optimizer must know of each.

Legend: D model width, H heads, G key-value heads, K head width, F feed-forward width, V vocabulary, L layers,
P learned positions.

| parameter        | shape        | initial standard deviation            | there is one                   |
|------------------|--------------|---------------------------------------|--------------------------------|
| embedding        | [V, D]       | 1 (no norm follows; logits / sqrt(D)) | always                         |
| output           | [V, D]       | 1                                     | unless embeddings are shared   |
| positions        | [P, D]       | 1/2                                   | with learned positions         |
| query            | [L, D, H, K] | D^-1/2                                | always                         |
| key, value       | [L, D, G K]  | D^-1/2                                | always                         |
| gate             | [L, D, F]    | D^-1/2                                | with SwiGLU                    |
| up               | [L, D, F]    | D^-1/2                                | always                         |
| attention_out    | [L, H, K, D] | (H K)^-1/2                            | always                         |
| mlp_out          | [L, F, D]    | F^-1/2                                | always                         |
| norm, mlp_norm   | [L, D], [D]  | ones                                  | mlp_norm: in a serial block    |
| *_bias           | without fan-in | zeros                               | with biases                    |

Half for positions is GPT-2's proportion to the embedding (0.01 to 0.02 in its code). Embedding and kernels are PaLM's
(Chowdhery et al. 2022, section 5). What is absent is None, an empty tree to jax.
"""

from dataclasses import dataclass, fields, replace

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from areca.model import draw
from areca.model.config import ModelConfig
from areca.model.layout import ONE_DEVICE, Layout

# A parameter's draw is folded from its place here, so that no draw depends on which others there are.
_DRAWN = (
    "embedding", "query", "key", "value", "gate", "up", "attention_out", "mlp_out", "output", "positions",
)  # fmt: skip


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layers:
    """The parameters of all blocks, stacked along a leading axis L."""

    norm: Float[Array, "L D"]
    query: Float[Array, "L D H K"]
    key: Float[Array, "L D GK"]
    value: Float[Array, "L D GK"]
    gate: Float[Array, "L D F"] | None
    up: Float[Array, "L D F"]
    attention_out: Float[Array, "L H K D"]
    mlp_out: Float[Array, "L F D"]
    mlp_norm: Float[Array, "L D"] | None = None
    norm_bias: Float[Array, "L D"] | None = None
    query_bias: Float[Array, "L HK"] | None = None
    key_bias: Float[Array, "L GK"] | None = None
    value_bias: Float[Array, "L GK"] | None = None
    gate_bias: Float[Array, "L F"] | None = None
    up_bias: Float[Array, "L F"] | None = None
    attention_out_bias: Float[Array, "L D"] | None = None
    mlp_out_bias: Float[Array, "L D"] | None = None
    mlp_norm_bias: Float[Array, "L D"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decoder:
    """All parameters of a model. Leaves under `layers` have one leading stacked axis, the others none."""

    embedding: Float[Array, "V D"]
    layers: Layers
    norm: Float[Array, "D"]
    output: Float[Array, "V D"] | None = None
    positions: Float[Array, "P D"] | None = None
    norm_bias: Float[Array, "D"] | None = None


def init(config: ModelConfig, key: Array, layout: Layout = ONE_DEVICE) -> Decoder:
    """Initial float32 parameters, by the table above; a parameter's draw does not depend on the others.

    Under a mesh, one device's pieces: the same numbers on every mesh, and none is made where it does not stay.
    """
    c = config.resolved()
    L, D, H, K, F, V = c.n_layers, c.d_model, c.n_heads, c.head_dim, c.d_ff, c.vocab_size
    GK = c.n_kv_heads * K
    keys = {name: jax.random.fold_in(key, i) for i, name in enumerate(_DRAWN)}
    serial, gated = c.block == "serial", c.mlp == "swiglu"

    def normal(name: str, shape: tuple[int, ...], std: float) -> Array:
        return draw.normal(keys[name], name, shape, std, layout)

    def constant(name: str, shape: tuple[int, ...], value: float) -> Array:
        return jnp.full(draw.box(name, shape, layout)[1], value, jnp.float32)

    def biases(**widths: int) -> dict[str, Array]:
        return {f"{n}_bias": constant(f"{n}_bias", (L, width), 0.0) for n, width in widths.items() if c.biases}

    layers = Layers(
        norm=constant("norm", (L, D), 1.0),
        query=normal("query", (L, D, H, K), D**-0.5),
        key=normal("key", (L, D, GK), D**-0.5),
        value=normal("value", (L, D, GK), D**-0.5),
        gate=normal("gate", (L, D, F), D**-0.5) if gated else None,
        up=normal("up", (L, D, F), D**-0.5),
        attention_out=normal("attention_out", (L, H, K, D), (H * K) ** -0.5),
        mlp_out=normal("mlp_out", (L, F, D), F**-0.5),
        mlp_norm=constant("mlp_norm", (L, D), 1.0) if serial else None,
        **biases(norm=D, query=H * K, key=GK, value=GK, up=F, attention_out=D, mlp_out=D),
        **(biases(gate=F) if gated else {}),
        **(biases(mlp_norm=D) if serial else {}),
    )
    return Decoder(
        embedding=normal("embedding", (V, D), 1.0),
        layers=layers,
        norm=constant("norm", (D,), 1.0),
        output=None if c.tied else normal("output", (V, D), 1.0),
        positions=normal("positions", (c.n_positions, D), 0.5) if c.positions == "learned" else None,
        norm_bias=constant("norm_bias", (D,), 0.0) if c.biases else None,
    )


def unstack(layers: Layers, count: int) -> list[Layers]:
    """One Layers for each layer. By lax.split, whose gradient is one concatenation and not a sum of padded arrays."""
    pieces = jax.tree.map(lambda a: [x[0] for x in jax.lax.split(a, (1,) * count, axis=0)], layers)
    is_pieces = lambda x: isinstance(x, list)  # noqa: E731
    return [jax.tree.map(lambda x, i=i: x[i], pieces, is_leaf=is_pieces) for i in range(count)]


def parameter_axes(params: Decoder) -> Decoder:
    """For each leaf the number of leading stacked axes (1 under `layers`): the optimizer treats slices as matrices."""
    return replace(jax.tree.map(lambda _: 0, params), layers=jax.tree.map(lambda _: 1, params.layers))


def fan_in_axes(params: Decoder) -> Decoder:
    """For each hidden matrix how many of its axes after the stacked one are its input, the others being its output; 0
    for a leaf that is none (embeddings, learned positions, norms, biases)."""
    return jax.tree.map(
        lambda wide, name: {"attention_out": 2}.get(name, 1) if wide else 0, widening(params), _names(params)
    )


def _names(params: Decoder) -> Decoder:
    """Each leaf's own name."""
    return jax.tree_util.tree_map_with_path(lambda path, _: str(getattr(path[-1], "name", "")), params)


def widening(params: Decoder) -> Decoder:
    """For each leaf 1 if its fan-in grows with D (muP's hidden matrices, whose rate falls with D), else 0."""
    none = jax.tree.map(lambda _: 0, params)
    kernels = {f.name: 1 for f in fields(Layers) if f.name in _DRAWN and getattr(params.layers, f.name) is not None}
    return replace(none, layers=replace(none.layers, **kernels))
