"""A decoder, top to bottom: PaLM's by default (Chowdhery et al. 2022, section 2).

    x = embed(tokens);  L times: h = LN(x); x = x + attention(h) + mlp(h);  logits = LN(x) E^T / sqrt(D)

Each of PaLM's six choices can be switched back (`ModelConfig`): the block to a serial one, x = x + attention(LN(x)),
x = x + mlp(LN(x)); multi-query attention to more key-value heads; SwiGLU to GELU; RoPE to learned positions; shared
embeddings to separate ones; no biases to biases everywhere.

Legend: B batch, T position, D model width, H heads, G key-value heads, K head width, F feed-forward width,
V vocabulary, L layers, X some of those joined.

Parameters and their initial values are in `areca.model.parameters`. The input kernels are kept apart (each is a matrix
of its own to the optimizer, to sharding and to other formats) and joined for one multiplication. How parameters lie on
a mesh of devices, and every transfer between them, is in `areca.model.layout`.
"""

import functools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from areca.model.attention import attention, documents, pairs_to_halves, rope_angles, rotate_halves
from areca.model.config import ModelConfig
from areca.model.layout import ONE_DEVICE, Layout
from areca.model.loss import Parts, Split, cross_entropy, token_losses
from areca.model.parameters import Decoder, Layers, fan_in_axes, init, parameter_axes, unstack, widening

UNROLL_LIMIT = 6  # at most this many layers are unrolled on the CPU, where a scan costs 8 to 10%

Angles = tuple[Array, Array] | None  # cos and sin [B or 1, T, K/2] of RoPE, or no rotation


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
    e_VD = (params.embedding if params.output is None else params.output).astype(x_BTD.dtype)
    return jnp.einsum("btd,vd->btv", x_BTD, e_VD, preferred_element_type=jnp.float32) * (x_BTD.shape[-1] ** -0.5)


def hidden(config: ModelConfig, params: Decoder, tokens_BT: Int[Array, "B T"]) -> Float[Array, "B T D"]:
    """What the logits are made from: the output of the last norm, in the compute type (muP's factor in it)."""
    return _body(config, params, tokens_BT, ONE_DEVICE)[0]


def _body(config: ModelConfig, params: Decoder, tokens_BT: Array, layout: Layout) -> tuple[Array, Array]:
    """The output of the last norm [B, T, D] and the embedding as the logits take it, in the compute type.

    Under a mesh B is one device's, the embedding is [V / model, D] with V padded, and activations between layers are
    cut over model along D.
    """
    c = config.resolved()
    table_VD = table(params.embedding, layout)
    x_BTD = embed(params, table_VD, tokens_BT, layout=layout)
    angles = angles_at(c, tokens_BT.shape[1])

    attend = attention_over(c, tokens_BT)

    def layer(x_BTD: Array, p: Layers) -> tuple[Array, None]:
        return block(c, p, x_BTD, angles, attend, layout), None

    layer = layout.keep(layer)
    if unrolled(c.n_layers, layout):
        for p in unstack(params.layers, c.n_layers):
            x_BTD, _ = layer(x_BTD, p)
    else:
        x_BTD, _ = jax.lax.scan(layer, x_BTD, params.layers)
    if params.output is not None:
        table_VD = table(params.output, layout)
    return last_norm(c, params, x_BTD, layout), layout.rows_over_model(table_VD)


def unrolled(layers: int, layout: Layout) -> bool:
    """Whether a program writes so many layers out instead of scanning them."""
    return layers <= UNROLL_LIMIT and layout.devices == 1 and jax.default_backend() == "cpu"


def table(embedding_VD: Array, layout: Layout = ONE_DEVICE) -> Array:
    """An embedding as it is computed with: in the compute type and, under a mesh, whole over data."""
    return layout.whole(embedding_VD.astype(layout.compute_dtype()), 1)


def embed(
    params: Decoder,
    table_VD: Array,
    tokens_BT: Array,
    position_BT: Array | None = None,
    layout: Layout = ONE_DEVICE,
) -> Array:
    """Rows of the embedding, and of learned positions if there are any: 0 to T - 1, or those given."""
    x_BTD = table_VD[tokens_BT]
    if params.positions is None:
        return x_BTD
    position_PD = layout.whole(params.positions.astype(x_BTD.dtype), 1)
    return x_BTD + (position_PD[None, : tokens_BT.shape[1]] if position_BT is None else position_PD[position_BT])


def angles_at(config: ModelConfig, context: int, position_BT: Array | None = None) -> Angles:
    """RoPE's angles of positions 0 to context - 1, or of those given below it; None for a model without RoPE."""
    if config.positions != "rope":
        return None
    angles_Tk = rope_angles(context, config.resolved().head_dim, config.rope_theta)
    cos, sin = (a[None] if position_BT is None else a[position_BT] for a in angles_Tk)
    return cos, sin


def attention_over(config: ModelConfig, tokens_BT: Array) -> Callable[[Array, Array, Array], Array]:
    """Attention over all of the context before, or, with `document_mask`, over the token's own document.

    The token after a boundary is then predicted from the boundary alone, which belongs to the document it begins, and
    counts in the loss like any other: it is what text drawn from an empty prompt begins with.
    """
    if not config.document_mask:
        return attention
    return functools.partial(attention, document_BS=documents(tokens_BT, config.document_end))


def last_norm(config: ModelConfig, params: Decoder, x_BTD: Array, layout: Layout = ONE_DEVICE) -> Array:
    """The norm before the logits. muP divides them by (D / base)^1/2 beside sqrt(D), so by D in all: here, for free."""
    scale, bias = params.norm, params.norm_bias
    if config.width_ratio != 1:
        factor = config.width_ratio**-0.5
        scale, bias = scale * factor, None if bias is None else bias * factor
    return _norm(x_BTD, scale, bias, config.norm_epsilon, layout)


def block(
    config: ModelConfig,
    p: Layers,
    x_BTD: Array,
    angles: Angles,
    attend: Callable[[Array, Array, Array], Array] = attention,
    layout: Layout = ONE_DEVICE,
) -> Array:
    """One block. `p` holds one layer, without axis L.

    `attend` gets q_BTHK, k_BTGK and v_BTGK after rotation; decoding puts its cache there. Under a mesh H, G and F are
    one device's, and x is cut along D over model before and after.
    """
    h_BTD = _norm(x_BTD, p.norm, p.norm_bias, config.norm_epsilon, layout)
    into_attention, into_mlp = _attention_kernels(config, p, layout), _mlp_kernels(p, layout)
    if config.block == "parallel":  # both branches read one norm: one multiplication
        outs = _inputs(h_BTD, into_attention + into_mlp, layout)
        a_BTX = _attended(config, p, outs[:3], angles, attend, layout)
        return _add(x_BTD, [_attention_out(p, a_BTX, layout), _mlp_out(p, outs[3:], layout)], layout)
    a_BTX = _attended(config, p, _inputs(h_BTD, into_attention, layout), angles, attend, layout)
    x_BTD = layout.projected(_add(x_BTD, [_attention_out(p, a_BTX, layout)], layout))
    assert p.mlp_norm is not None
    h_BTD = _norm(x_BTD, p.mlp_norm, p.mlp_norm_bias, config.norm_epsilon, layout)
    return _add(x_BTD, [_mlp_out(p, _inputs(h_BTD, into_mlp, layout), layout)], layout)


Kernel = tuple[Array, Array | None]  # [D, X], under a mesh D is a piece and X one device's, and its bias [X]


def _attention_kernels(config: ModelConfig, p: Layers, layout: Layout) -> list[Kernel]:
    """Of query, key and value. Rotated ones come as halves; a device has the key-value heads that its queries see."""
    order = pairs_to_halves if config.positions == "rope" else lambda kernel: kernel
    D, H, K = p.query.shape
    G = p.key.shape[1] // K

    def shared(kernel_DX: Array, bias_X: Array | None, order: Callable[[Array], Array]) -> Kernel:
        kernel = order(layout.over_model(kernel_DX, 0).reshape(D, G, K)).reshape(D, G * K)
        if bias_X is None:
            return layout.shared_heads(kernel, 1, G), None
        bias = order(layout.whole(layout.over_model(bias_X, 0), 0).reshape(G, K)).reshape(G * K)
        return layout.shared_heads(kernel, 1, G), layout.shared_heads(bias, 0, G)

    query_bias = p.query_bias
    if query_bias is not None:
        query_bias = order(layout.whole(query_bias, 0).reshape(H, K)).reshape(H * K)
    query = order(p.query).reshape(D, H * K), query_bias
    return [query, shared(p.key, p.key_bias, order), shared(p.value, p.value_bias, lambda kernel: kernel)]


def _mlp_kernels(p: Layers, layout: Layout) -> list[Kernel]:
    """Of gate and up; of up alone without a gate."""
    kernels = [(p.gate, p.gate_bias), (p.up, p.up_bias)]
    return [(k, None if b is None else layout.whole(b, 0)) for k, b in kernels if k is not None]


def _inputs(h_BTD: Array, kernels: list[Kernel], layout: Layout) -> list[Array]:
    """h times each kernel plus its bias, [B, T, X], by one multiplication."""
    joined = layout.whole(jnp.concatenate([k for k, _ in kernels], axis=1).astype(h_BTD.dtype), 0)
    out = _project(h_BTD, joined)
    if kernels[0][1] is not None:
        out = out + jnp.concatenate([b for _, b in kernels if b is not None]).astype(out.dtype)[None, None]
    return list(jax.lax.split(layout.projected(out), [k.shape[1] for k, _ in kernels], axis=2))


def _attended(
    config: ModelConfig,
    p: Layers,
    qkv: list[Array],
    angles: Angles,
    attend: Callable[[Array, Array, Array], Array],
    layout: Layout,
) -> Array:
    """What the heads bring, joined: [B, T, H K]."""
    H, K = p.query.shape[1:]
    B, T, _ = qkv[0].shape
    q_BTHK, k_BTGK, v_BTGK = (x.reshape(B, T, -1, K) for x in qkv)
    if angles is not None:
        cos, sin = (a.astype(q_BTHK.dtype)[:, :, None] for a in angles)
        q_BTHK, k_BTGK = rotate_halves(q_BTHK, cos, sin), rotate_halves(k_BTGK, cos, sin)
    return layout.attended(attend(q_BTHK, k_BTGK, v_BTGK).reshape(B, T, H * K))


def _attention_out(p: Layers, a_BTX: Array, layout: Layout) -> Kernel:
    """The branch's output before it is summed over model, and the bias to add after that."""
    kernel = layout.whole(p.attention_out.reshape(a_BTX.shape[-1], -1).astype(a_BTX.dtype), 1)
    return _project(a_BTX, kernel), p.attention_out_bias


def _mlp_out(p: Layers, inputs: list[Array], layout: Layout) -> Kernel:
    """As `_attention_out`, of SwiGLU (Shazeer 2020) or, without a gate, GELU."""
    m_BTF = jax.nn.silu(inputs[0]) * inputs[1] if len(inputs) == 2 else jax.nn.gelu(inputs[0])
    return _project(m_BTF, layout.whole(p.mlp_out.astype(m_BTF.dtype), 1)), p.mlp_out_bias


def _add(x_BTD: Array, branches: list[Kernel], layout: Layout) -> Array:
    """The residual stream with the branches' outputs; under a mesh with what all devices found, in one transfer."""
    if layout.model == 1:
        for out_BTD, _ in branches:
            x_BTD = x_BTD + out_BTD
    else:
        x_BTD = x_BTD + layout.sum_over_model(functools.reduce(operator.add, (out for out, _ in branches)))
    for _, bias_D in branches:
        if bias_D is not None:
            x_BTD = x_BTD + layout.whole(bias_D, 0).astype(x_BTD.dtype)[None, None]
    return x_BTD


def _project(x_BTX: Array, kernel_XY: Array) -> Array:
    """x kernel over rows joined to one axis: the CPU then takes the gradient of the kernel in half the time."""
    B, T, X = x_BTX.shape
    return (x_BTX.reshape(B * T, X) @ kernel_XY).reshape(B, T, -1)


def _norm(x_BTD: Array, scale_D: Array, bias_D: Array | None, epsilon: float, layout: Layout) -> Array:
    """The norm of whole rows; under a mesh, of rows joined over model with a scale joined over all devices."""
    joined = [layout.whole(layout.over_model(a, 0), 0) for a in (scale_D, bias_D) if a is not None]
    return layer_norm(layout.over_model(x_BTD, 2), epsilon, *joined)


def layer_norm(x_BTD: Array, epsilon: float, scale_D: Array, bias_D: Array | None = None) -> Array:
    """Layer normalisation with a scale and, where there is one, a bias, computed in float32."""
    x = x_BTD.astype(jnp.float32)
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    out = centred * jax.lax.rsqrt(variance + epsilon) * scale_D[None, None]
    return (out if bias_D is None else out + bias_D[None, None]).astype(x_BTD.dtype)


def compute_dtype() -> jnp.dtype:
    """float32 on the CPU, bfloat16 elsewhere; parameters, logits and softmax are float32 everywhere."""
    return ONE_DEVICE.compute_dtype()


__all__ = [
    "Decoder", "Layers", "fan_in_axes", "hidden", "init", "logits", "loss", "losses", "parameter_axes", "unembed",
    "widening",
]  # fmt: skip
