"""PaLM's decoder, top to bottom (Chowdhery et al. 2022, section 2).

    x = embed(tokens);  L times: h = LN(x); x = x + attention(h) + mlp(h);  logits = LN(x) E^T / sqrt(D)

Legend: B batch, T position, D model width, H heads, K head width, F feed-forward width, V vocabulary, L layers.

| parameter      | shape        | initial standard deviation            |
|----------------|--------------|---------------------------------------|
| embedding      | [V, D]       | 1 (no norm follows; logits / sqrt(D)) |
| query          | [L, D, H, K] | D^-1/2                                |
| key, value     | [L, D, K]    | D^-1/2                                |
| gate, up       | [L, D, F]    | D^-1/2                                |
| attention_out  | [L, H, K, D] | (H K)^-1/2                            |
| mlp_out        | [L, F, D]    | F^-1/2                                |
| norm scales    | [L, D], [D]  | ones                                  |

No biases anywhere. The five input kernels are kept apart (each is a matrix of its own to the optimizer, to sharding
and to other formats) and joined for one multiplication. How parameters lie on a mesh of devices, and every transfer
between them, is in `areca.model.layout`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from areca.model import draw
from areca.model.attention import attention, pairs_to_halves, rope_angles, rotate_halves
from areca.model.config import ModelConfig
from areca.model.layout import ONE_DEVICE, Layout
from areca.model.loss import Parts, Split, cross_entropy, token_losses

UNROLL_LIMIT = 6  # at most this many layers are unrolled on the CPU, where a scan costs 8 to 10%


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layers:
    """The parameters of all blocks, stacked along a leading axis L."""

    norm: Float[Array, "L D"]
    query: Float[Array, "L D H K"]
    key: Float[Array, "L D K"]
    value: Float[Array, "L D K"]
    gate: Float[Array, "L D F"]
    up: Float[Array, "L D F"]
    attention_out: Float[Array, "L H K D"]
    mlp_out: Float[Array, "L F D"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decoder:
    """All parameters of a model. Leaves under `layers` have one leading stacked axis, the others none."""

    embedding: Float[Array, "V D"]
    layers: Layers
    norm: Float[Array, "D"]


def init(config: ModelConfig, key: Array, layout: Layout = ONE_DEVICE) -> Decoder:
    """Initial float32 parameters, by the table above; a layer's draw does not depend on the other parameters.

    Under a mesh, one device's pieces: the same numbers on every mesh, and none is made where it does not stay.
    """
    c = config.resolved()
    L, D, H, K, F, V = c.n_layers, c.d_model, c.n_heads, c.head_dim, c.d_ff, c.vocab_size
    names = ("embedding", "query", "key", "value", "gate", "up", "attention_out", "mlp_out")
    keys = {name: jax.random.fold_in(key, i) for i, name in enumerate(names)}

    def normal(name: str, shape: tuple[int, ...], std: float) -> Array:
        return draw.normal(keys[name], name, shape, std, layout)

    def ones(name: str, shape: tuple[int, ...]) -> Array:
        return jnp.ones(draw.box(name, shape, layout)[1], jnp.float32)

    return Decoder(
        embedding=normal("embedding", (V, D), 1.0),
        layers=Layers(
            norm=ones("norm", (L, D)),
            query=normal("query", (L, D, H, K), D**-0.5),
            key=normal("key", (L, D, K), D**-0.5),
            value=normal("value", (L, D, K), D**-0.5),
            gate=normal("gate", (L, D, F), D**-0.5),
            up=normal("up", (L, D, F), D**-0.5),
            attention_out=normal("attention_out", (L, H, K, D), (H * K) ** -0.5),
            mlp_out=normal("mlp_out", (L, F, D), F**-0.5),
        ),
        norm=ones("norm", (D,)),
    )


def loss(
    config: ModelConfig,
    params: Decoder,
    tokens_BS: Int[Array, "B S"],
    z_loss: float = 1e-4,
    layout: Layout = ONE_DEVICE,
) -> tuple[Float[Array, ""], Parts]:
    """What training minimises, predicting tokens[:, 1:] from tokens[:, :-1] (S = T + 1), and its parts to log.

    Under a mesh all arrays are one device's pieces, and so are the results: their sum over devices is meant.
    """
    x_BTD, table_VD = _body(config, params, tokens_BS[:, :-1], layout)
    return cross_entropy(x_BTD, table_VD, tokens_BS[:, 1:], z_loss, Split.of(layout, config.vocab_size))


def losses(
    config: ModelConfig, params: Decoder, tokens_BS: Int[Array, "B S"], layout: Layout = ONE_DEVICE
) -> Float[Array, "B T"]:
    """Cross-entropy of every position, in nats, for evaluation. Under a mesh, of one device's sequences."""
    x_BTD, table_VD = _body(config, params, tokens_BS[:, :-1], layout)
    return token_losses(x_BTD, table_VD, tokens_BS[:, 1:], Split.of(layout, config.vocab_size))


def logits(config: ModelConfig, params: Decoder, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """Logits in float32. Materialises B T V numbers: for tests, decoding and short texts."""
    return unembed(params, hidden(config, params, tokens_BT))


def unembed(params: Decoder, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
    """x E^T / sqrt(D) in float32."""
    e_VD = params.embedding.astype(x_BTD.dtype)
    return jnp.einsum("btd,vd->btv", x_BTD, e_VD, preferred_element_type=jnp.float32) * (x_BTD.shape[-1] ** -0.5)


def hidden(config: ModelConfig, params: Decoder, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """The output of the last norm, in the compute type."""
    return _body(config, params, tokens_BT, ONE_DEVICE)[0]


def _body(config: ModelConfig, params: Decoder, tokens_BT: Array, layout: Layout) -> tuple[Array, Array]:
    """The output of the last norm [B, T, D] and the embedding as the logits take it, in the compute type.

    Under a mesh B is one device's, the embedding is [V / model, D] with V padded, and activations between layers are
    cut over model along D.
    """
    c = config.resolved()
    table_VD = layout.whole(params.embedding.astype(layout.compute_dtype()), 1)
    x_BTD = table_VD[tokens_BT]
    cos_Tk, sin_Tk = rope_angles(tokens_BT.shape[1], c.head_dim, c.rope_theta)

    def layer(x_BTD: Array, p: Layers) -> tuple[Array, None]:
        return block(c, p, x_BTD, cos_Tk[None], sin_Tk[None], layout=layout), None

    layer = layout.keep(layer)
    if c.n_layers <= UNROLL_LIMIT and layout.devices == 1 and jax.default_backend() == "cpu":
        for p in unstack(params.layers, c.n_layers):
            x_BTD, _ = layer(x_BTD, p)
    else:
        x_BTD, _ = jax.lax.scan(layer, x_BTD, params.layers)
    return _norm(x_BTD, params.norm, c.norm_epsilon, layout), layout.rows_over_model(table_VD)


def block(
    config: ModelConfig,
    p: Layers,
    x_BTD: Array,
    cos_BTk: Array,
    sin_BTk: Array,
    attend: Callable[[Array, Array, Array], Array] = attention,
    layout: Layout = ONE_DEVICE,
) -> Array:
    """One parallel block: both branches read the same norm (PaLM section 2). `p` holds one layer, without axis L.

    The angles' axis B may be 1. `attend` gets q_BTHK, k_BTK and v_BTK after rotation; decoding puts its cache there.
    Under a mesh H and F are one device's, and x is cut along D over model before and after.
    """
    dtype = x_BTD.dtype
    h_BTD = _norm(x_BTD, p.norm, config.norm_epsilon, layout)
    D, H, K = p.query.shape  # under a mesh D is a piece here
    F = p.gate.shape[1]

    k_DK, v_DK = layout.over_model(p.key, 0), layout.over_model(p.value, 0)
    kernels = (pairs_to_halves(p.query).reshape(D, H * K), pairs_to_halves(k_DK), v_DK, p.gate, p.up)
    joined = layout.whole(jnp.concatenate(kernels, axis=1).astype(dtype), 0)
    q_BTX, k_BTK, v_BTK, gate_BTF, up_BTF = jax.lax.split(
        layout.projected(_project(h_BTD, joined)), (H * K, K, K, F, F), axis=2
    )

    B, T, _ = x_BTD.shape
    cos, sin = cos_BTk.astype(dtype), sin_BTk.astype(dtype)
    q_BTHK = rotate_halves(q_BTX.reshape(B, T, H, K), cos[:, :, None], sin[:, :, None])
    k_BTK = rotate_halves(k_BTK, cos, sin)
    a_BTX = layout.attended(attend(q_BTHK, k_BTK, v_BTK).reshape(B, T, H * K))
    m_BTF = jax.nn.silu(gate_BTF) * up_BTF

    attention_out = layout.whole(p.attention_out.reshape(H * K, -1).astype(dtype), 1)
    mlp_out = layout.whole(p.mlp_out.astype(dtype), 1)
    if layout.model == 1:
        return x_BTD + _project(a_BTX, attention_out) + _project(m_BTF, mlp_out)
    return x_BTD + layout.sum_over_model(_project(a_BTX, attention_out) + _project(m_BTF, mlp_out))


def _project(x_BTX: Array, kernel_XY: Array) -> Array:
    """x kernel over rows joined to one axis: the CPU then takes the gradient of the kernel in half the time."""
    B, T, X = x_BTX.shape
    return (x_BTX.reshape(B * T, X) @ kernel_XY).reshape(B, T, -1)


def _norm(x_BTD: Array, scale_D: Array, epsilon: float, layout: Layout) -> Array:
    """The norm of whole rows; under a mesh, of rows joined over model with a scale joined over all devices."""
    return layer_norm(layout.over_model(x_BTD, 2), layout.whole(layout.over_model(scale_D, 0), 0), epsilon)


def layer_norm(x_BTD: Array, scale_D: Array, epsilon: float) -> Array:
    """Layer normalisation with a scale and no bias, computed in float32."""
    x = x_BTD.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + epsilon) * scale_D[None, None]).astype(x_BTD.dtype)


def unstack(layers: Layers, count: int) -> list[Layers]:
    """One Layers for each layer. By lax.split, whose gradient is one concatenation and not a sum of padded arrays."""
    pieces = jax.tree.map(lambda a: [x[0] for x in jax.lax.split(a, (1,) * count, axis=0)], layers)
    is_pieces = lambda x: isinstance(x, list)  # noqa: E731
    return [jax.tree.map(lambda x, i=i: x[i], pieces, is_leaf=is_pieces) for i in range(count)]


def compute_dtype() -> jnp.dtype:
    """float32 on the CPU, bfloat16 elsewhere; parameters, logits and softmax are float32 everywhere."""
    return ONE_DEVICE.compute_dtype()


def parameter_axes(params: Decoder) -> Decoder:
    """For each leaf the number of leading stacked axes (1 under `layers`): the optimizer treats slices as matrices."""
    return Decoder(embedding=0, layers=jax.tree.map(lambda _: 1, params.layers), norm=0)  # type: ignore[arg-type]


__all__ = ["Decoder", "Layers", "hidden", "init", "logits", "loss", "losses", "parameter_axes", "unembed"]
