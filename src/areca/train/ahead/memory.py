"""How much memory a step needs beside its state: what is live at each of its moments, by arithmetic.

An estimate. The program that a dry run compiles is one for CPUs, whose compiler widens bfloat16 to float32; here
everything has the type it was written in, chains of elementwise operations are taken for fused, and gathered kernels
for double buffered, as compilers for accelerators do. All bytes are one device's.
"""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from areca.config import ModelConfig
from areca.model.attention import QUERY_BLOCK
from areca.model.counts import hidden_matrices
from areca.model.layout import MODEL, Layout
from areca.model.loss import chunks

FLOAT32 = 4


@dataclass(frozen=True)
class Estimate:
    """Live bytes at each moment, by what they are for. The largest moment is what a step needs."""

    moments: dict[str, dict[str, int]]

    @property
    def peak(self) -> str:
        return max(self.moments, key=lambda name: sum(self.moments[name].values()))

    @property
    def bytes(self) -> int:
        return sum(self.moments[self.peak].values())


def estimate(
    model: ModelConfig,
    layout: Layout,
    params: Any,
    batch: int,
    context: int,
    kept: int,
    buffers: int = 2,
    muon: bool = False,
) -> Estimate:
    """What a step of `batch` sequences, over all devices, needs beside parameters and moments.

    `params` are the model's, abstract; `kept` is what the forward pass leaves for the backward pass, in bytes;
    `buffers` is how many layers' kernels are there at once: 2 where the next ones arrive while one computes.
    With `muon` an update has the steps of all matrices, cut, and one matrix whole: X, its next, and two squares.
    """
    c = model.resolved()
    size = np.dtype(layout.compute_dtype()).itemsize
    tokens = batch * context // layout.data
    queries = min(QUERY_BLOCK, context)
    attended, hidden = c.n_heads * c.head_dim // layout.model, c.d_ff // layout.model
    shared = max(1, c.n_kv_heads // layout.model) * c.head_dim
    projected = attended + 2 * shared + (2 if c.mlp == "swiglu" else 1) * hidden
    # Of one block of queries: probabilities, their gradient, the scores' gradient.
    scores = 3 * FLOAT32 * (batch // layout.data) * (c.n_heads // layout.model) * queries * context

    layer = size * _gathered(layout, params.layers) // c.n_layers
    table = math.prod(params.embedding.shape) // layout.model
    words = table // c.d_model
    cut = [FLOAT32 * math.prod(p.shape) // layout.devices for p in jax.tree.leaves(params)]
    orthogonal = max(2 * m * n + 2 * m * m for m, n in hidden_matrices(c))
    # The input joined over model, its norm, the products' outputs, rotated queries, the attended, SwiGLU's output.
    outputs = size * tokens * (2 * c.d_model + projected + 2 * attended + hidden)
    return Estimate(
        {
            "forward": {
                "activations kept": kept,
                "kernels of a layer": buffers * layer,
                "embedding": size * table,
                "activations of a layer": outputs + scores,
            },
            "loss": {
                "activations kept": kept,
                "embedding": size * table,
                "its gradient": FLOAT32 * table,
                "logits": (2 * FLOAT32 + size) * words * tokens // chunks(tokens, words, c.d_model),
                "last activations": 2 * size * tokens * c.d_model,
            },
            "backward": {
                "activations kept": kept,
                "kernels of a layer": buffers * layer,
                "their gradients": layer,
                "gradients, cut": sum(cut),
                "gradient of the embedding": size * table,
                "activations of a layer": (outputs if layout.remat != "none" else 0) + scores,
                # Of the output and the input, joined over model, of the norm, of what the products made.
                "gradients of activations": size * tokens * (3 * c.d_model + projected),
            },
            "update": {"gradients, cut": sum(cut), "the largest update": max(cut)}
            | ({"orthogonal steps": sum(cut), "the largest as it is made": FLOAT32 * orthogonal} if muon else {}),
        }
    )


def _gathered(layout: Layout, tree: Any) -> int:
    """Numbers of the tree's leaves on a device that has gathered them: cut where they are cut over model alone."""
    specs = jax.tree.leaves(layout.specs(tree), is_leaf=lambda x: isinstance(x, PartitionSpec))
    return sum(
        math.prod(p.shape) // (layout.model if MODEL in s else 1)
        for p, s in zip(jax.tree.leaves(tree), specs, strict=True)
    )
