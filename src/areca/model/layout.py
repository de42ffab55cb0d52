"""How a decoder lies on a mesh of devices ("data", "model"), and the collectives this takes: the only place with them.

As PaLM within a pod (Chowdhery et al. 2022, section 4): the batch is cut over data; every parameter is cut over all
devices; heads, F and V are cut over model. A layer's kernels are gathered over data where the layer is computed, in the
forward pass and again in the backward pass. Between layers an activation is cut over both axes.

| parameter      | shape        | cut over (axis of the mesh for each axis of the array) |
|----------------|--------------|--------------------------------------------------------|
| embedding, output, positions | [., D] | -, model x data                                  |
| norm scales    | [L, D], [D]  | data x model on D                                      |
| query          | [L, D, H, K] | -, data, model, -                                      |
| key, value     | [L, D, G K]  | -, data x model, -                                     |
| gate, up       | [L, D, F]    | -, data, model                                         |
| attention_out  | [L, H, K, D] | -, model, -, data                                      |
| mlp_out        | [L, F, D]    | -, model, data                                         |
| biases         | [L, .]       | as their kernel's output and D: model x data; of key, value and norms data x model |

Code under a mesh is written for one device's pieces (shard_map), so that every transfer is one that stands here. The
gradient of a gather is a sum that leaves each device its piece, so gradients arrive cut like their parameters. An
objective counts on every device its share: the true objective is the sum over devices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from areca.errors import ConfigError
from areca.model.config import ModelConfig

Remat = Literal["none", "block", "selective"]
DATA, MODEL = "data", "model"

# By the last name of a parameter's path; those under `layers` have the stacking axis in front.
RULES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("embedding", "output", "positions"), (None, (MODEL, DATA))),
    **dict.fromkeys(("norm", "mlp_norm", "norm_bias", "mlp_norm_bias", "key_bias", "value_bias"), ((DATA, MODEL),)),
    **dict.fromkeys(("query_bias", "gate_bias", "up_bias", "attention_out_bias", "mlp_out_bias"), ((MODEL, DATA),)),
    "query": (DATA, MODEL, None),
    "key": ((DATA, MODEL), None),
    "value": ((DATA, MODEL), None),
    "gate": (DATA, MODEL),
    "up": (DATA, MODEL),
    "attention_out": (MODEL, None, DATA),
    "mlp_out": (MODEL, DATA),
}
_KERNEL = "kernel"  # name of whole kernels: never kept for the backward pass
_KEPT = ("projected", "attended")  # what "selective" keeps: the outputs of the large products


@dataclass(frozen=True)
class Layout:
    """A mesh's sizes and what is kept for the backward pass. The default is one device: then nothing is transferred.

    remat says what a layer keeps for its backward pass. "none": all it needs, but never gathered kernels. "selective":
    the outputs of its products; norms, rotations, SwiGLU and scores are computed again. "block": its input only.
    """

    data: int = 1
    model: int = 1
    remat: Remat = "none"
    dtype: str = ""  # of the computation; empty: float32 on the CPU, bfloat16 elsewhere

    @property
    def devices(self) -> int:
        return self.data * self.model

    # --- where things lie

    def mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """The mesh over the first devices of jax, or over those given. ConfigError when there are too few."""
        devices = jax.devices() if devices is None else devices
        if len(devices) < self.devices:
            raise ConfigError(
                f"a mesh of {self.data} x {self.model} (data x model) needs {self.devices} devices and there "
                f"{'is' if len(devices) == 1 else 'are'} {len(devices)}; choose a smaller one."
            )
        import numpy as np

        return Mesh(np.array(devices[: self.devices]).reshape(self.data, self.model), (DATA, MODEL))

    def specs(self, tree: Any) -> Any:
        """A PartitionSpec for each leaf of a tree of parameters, of moments of them, or of scalars (not cut)."""
        return jax.tree_util.tree_map_with_path(lambda path, leaf: _spec(path, len(leaf.shape)), tree)

    def shardings(self, tree: Any, mesh: Mesh) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.specs(tree), is_leaf=_is_spec)

    def check(self, config: ModelConfig) -> None:
        """ConfigError names the first dimension that the mesh does not divide. V may be any number: it is padded."""
        c = config.resolved()
        if self.data < 1 or self.model < 1:
            raise ConfigError(f"the mesh is {self.data} x {self.model} (data x model); both must be at least 1.")
        whole = "data x model", self.devices
        dimensions = [
            ("d_model", c.d_model, *whole), ("n_heads", c.n_heads, "model", self.model),
            ("d_ff", c.d_ff, "model", self.model),
        ]  # fmt: skip
        if c.biases:
            dimensions += [("d_ff", c.d_ff, *whole), ("n_heads x head_dim", c.n_heads * c.head_dim, *whole)]
            dimensions += [("n_kv_heads x head_dim", c.n_kv_heads * c.head_dim, *whole)]
        for name, size, over, by in dimensions:
            if size % by:
                raise ConfigError(
                    f"{name} {size} is not divisible by {by}, the mesh's {over} ({self.data} x {self.model}); "
                    "choose another mesh or shape."
                )

        if c.n_kv_heads % self.model and self.model % c.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads {c.n_kv_heads} and the mesh's model axis of {self.model} do not divide one another; "
                "choose another mesh or shape."
            )

    def check_batch(self, name: str, batch: int) -> None:
        """ConfigError unless a batch of so many sequences can be cut over data."""
        if batch % self.data:
            raise ConfigError(
                f"{name} is {batch} sequences, which the mesh's data axis of {self.data} does not divide; "
                "choose a multiple of it."
            )

    # --- transfers, on one device's pieces

    def whole(self, piece: Array, axis: int) -> Array:
        """A kernel whole again along `axis`, which is cut over data. Named, so that no policy keeps it."""
        if self.data > 1:
            piece = jax.lax.all_gather(checkpoint_name(piece, _KERNEL), DATA, axis=axis, tiled=True)
        return checkpoint_name(piece, _KERNEL) if self.devices > 1 else piece

    def over_model(self, piece: Array, axis: int) -> Array:
        """Joins along `axis` the pieces of the devices that share a place on data."""
        return jax.lax.all_gather(piece, MODEL, axis=axis, tiled=True) if self.model > 1 else piece

    def shared_heads(self, x: Array, axis: int, heads: int) -> Array:
        """Of all key-value heads, joined along `axis`, those that this device's share of the heads sees."""
        if self.model == 1 or heads == 1:
            return x
        width, count = x.shape[axis] // heads, max(1, heads // self.model)
        first = jax.lax.axis_index(MODEL) * heads // self.model
        return jax.lax.dynamic_slice_in_dim(x, first * width, count * width, axis)

    def sum_over_model(self, x: Array) -> Array:
        """Sums over model and leaves each device its piece of the last axis."""
        if self.model == 1:
            return x
        return jax.lax.psum_scatter(x, MODEL, scatter_dimension=x.ndim - 1, tiled=True)

    def rows_over_model(self, table_Vd: Array) -> Array:
        """[V, D / model] on each device -> [V / model, D]: V is padded with zeros to a multiple."""
        if self.model == 1:
            return table_Vd
        table_Vd = jnp.pad(table_Vd, ((0, -table_Vd.shape[0] % self.model), (0, 0)))
        return jax.lax.all_to_all(table_Vd, MODEL, split_axis=0, concat_axis=1, tiled=True)

    # --- what is kept

    def keep(self, layer: Callable[..., Any]) -> Callable[..., Any]:
        """`layer` under the policy of remat."""
        policies = jax.checkpoint_policies
        if self.remat == "block":
            return jax.checkpoint(layer, policy=policies.nothing_saveable, prevent_cse=False)
        if self.remat == "selective":
            return jax.checkpoint(layer, policy=policies.save_only_these_names(*_KEPT), prevent_cse=False)
        if self.remat != "none":
            raise ConfigError(f"remat is {self.remat!r}; choose one of 'none', 'block', 'selective'.")
        if self.devices == 1:
            return layer
        return jax.checkpoint(layer, policy=_all_but_kernels, prevent_cse=False)

    def projected(self, x: Array) -> Array:
        return checkpoint_name(x, _KEPT[0]) if self.remat == "selective" else x

    def attended(self, x: Array) -> Array:
        return checkpoint_name(x, _KEPT[1]) if self.remat == "selective" else x

    def compute_dtype(self) -> jnp.dtype:
        if self.dtype:
            return jnp.dtype(self.dtype)
        return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)

    def on_mesh(self, function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """`function` of one device's pieces as a function of whole arrays."""
        mapped = partial(jax.shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return mapped(function)


ONE_DEVICE = Layout()


def _all_but_kernels(primitive: Any, *_: Any, **parameters: Any) -> bool:
    """A policy of jax.checkpoint that keeps everything but whole kernels: what is gathered over data, and its name."""
    if primitive.name == "all_gather":
        axes = parameters["axis_name"]
        return DATA not in (axes if isinstance(axes, tuple | list) else (axes,))
    return not (primitive.name == "name" and parameters["name"] == _KERNEL)


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)


def _spec(path: tuple[Any, ...], ndim: int) -> P:
    names = [str(getattr(key, "name", getattr(key, "key", ""))) for key in path]
    rule = next((RULES[name] for name in reversed(names) if name in RULES), None)
    if rule is None or ndim == 0:
        return P()
    return P(*(None,) * (ndim - len(rule)), *rule)
