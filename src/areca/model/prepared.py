"""A model's parameters as decoding takes them: joined where they read the same, and packed where kernels of ours work.

Legend: D model width, V vocabulary, P learned positions, X columns of joined kernels.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from areca.kernels.compiled import usable
from areca.kernels.product import Packed, pack, product
from areca.model import decoder
from areca.model.attention import pairs_to_halves
from areca.model.config import ModelConfig
from areca.model.parameters import Layers, unstack


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    """One layer's kernels, joined where they read the same: one pair in a parallel block, two in a serial one."""

    norm: Float[Array, "D"]
    norm_bias: Float[Array, "D"] | None
    mlp_norm: Float[Array, "D"] | None
    mlp_norm_bias: Float[Array, "D"] | None
    into: tuple[Float[Array, "D X"] | Packed, ...]
    into_bias: tuple[Float[Array, "X"] | None, ...]
    out: tuple[Float[Array, "X D"] | Packed, ...]
    out_bias: tuple[Float[Array, "D"] | None, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Weights:
    """A model to decode with, in the compute type. The last norm has the logits' scale in it."""

    embedding: Float[Array, "V D"]
    output: Float[Array, "D V"] | Packed  # columns that may be drawn
    layers: tuple[Layer, ...]
    norm: Float[Array, "D"]
    norm_bias: Float[Array, "D"] | None
    positions: Float[Array, "P D"] | None

    @property
    def packed(self) -> bool:
        """Whether kernels of ours work with them."""
        return isinstance(self.output, Packed)


def prepare(config: ModelConfig, params: decoder.Decoder, vocabulary: int) -> Weights:
    """Parameters as decoding takes them: a copy, after which `params` is not needed. `vocabulary`: ids to draw from.

    On one device of the CPU, in float32, the kernels are packed for products of our own (`areca.kernels`).
    """
    return _prepare(config, params, vocabulary, decoder.compute_dtype() == jnp.float32 and usable(params.embedding))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _prepare(config: ModelConfig, params: decoder.Decoder, vocabulary: int, packed: bool) -> Weights:
    c = config.resolved()
    dtype = decoder.compute_dtype()
    keep = pack if packed else lambda kernel: kernel
    scale = c.d_model**-0.5 * c.width_ratio**-0.5
    output = params.embedding if params.output is None else params.output
    layers = tuple(_joined(c, p, dtype, keep) for p in unstack(params.layers, c.n_layers))
    return Weights(
        params.embedding.astype(dtype),
        keep(output[:vocabulary].astype(dtype).T),
        layers,
        params.norm * scale,
        None if params.norm_bias is None else params.norm_bias * scale,
        None if params.positions is None else params.positions.astype(dtype),
    )


def _joined(c: ModelConfig, p: Layers, dtype: jnp.dtype, keep: Callable[[Array], Array | Packed]) -> Layer:
    D, H, K = p.query.shape
    order = pairs_to_halves if c.positions == "rope" else lambda kernel: kernel

    def heads(a: Array) -> Array:
        """A kernel or a bias with each head's columns in RoPE's order."""
        lead = a.shape[:1] if a.ndim > 1 else ()
        return order(a.reshape(*lead, -1, K)).reshape(*lead, -1)

    into = [[heads(p.query), heads(p.key), p.value], [k for k in (p.gate, p.up) if k is not None]]
    bias = [[p.query_bias, p.key_bias, p.value_bias], [b for b in (p.gate_bias, p.up_bias) if b is not None]]
    if p.query_bias is not None and p.key_bias is not None:
        bias[0][:2] = [heads(p.query_bias), heads(p.key_bias)]
    out = [p.attention_out.reshape(H * K, D), p.mlp_out]
    out_bias = [p.attention_out_bias, p.mlp_out_bias]
    if c.block == "parallel":
        into, bias, out = [into[0] + into[1]], [bias[0] + bias[1]], [jnp.concatenate(out)]
        out_bias = [None if out_bias[0] is None or out_bias[1] is None else out_bias[0] + out_bias[1]]
    return Layer(
        p.norm, p.norm_bias, p.mlp_norm, p.mlp_norm_bias,
        tuple(keep(jnp.concatenate(kernels, axis=1).astype(dtype)) for kernels in into),
        tuple(jnp.concatenate(b) if c.biases else None for b in bias),  # type: ignore[arg-type]
        tuple(keep(kernel.astype(dtype)) for kernel in out),
        tuple(out_bias),
    )  # fmt: skip


def times(
    x_MK: Float[Array, "M K"],
    kernel_KN: Float[Array, "K N"] | Packed,
    rows: Int[Array, ""] | None = None,
    dtype: jnp.dtype | None = None,
) -> Float[Array, "M N"]:
    """x times a kernel, in `dtype` or their own; of the first `rows` rows alone where that is a kernel of ours."""
    if isinstance(kernel_KN, Packed):
        return product(x_MK, kernel_KN, rows)
    return jnp.matmul(x_MK, kernel_KN, preferred_element_type=dtype)


def times_columns(
    x_MK: Float[Array, "M K"], kernel_KN: Float[Array, "K N"] | Packed, first: int, last: int
) -> Float[Array, "M C"]:
    """x times columns `first` to `last` - 1 of a kernel."""
    if isinstance(kernel_KN, Packed):
        panels, columns = kernel_KN.part(first, last)
        return product(x_MK, panels)[:, columns]
    return x_MK @ kernel_KN[:, first:last]


__all__ = ["Layer", "Weights", "prepare", "times", "times_columns"]
