"""The problem that every side of benchmarks/train_step.py solves: shapes, initial weights, batches. Needs numpy only.

Legend: B batch, T position, D model width, H heads, K head width, F feed-forward width, V vocabulary, L layers.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Problem:
    """One model with one batch, trained by Adam with clipping and z-loss."""

    d_model: int
    n_layers: int
    n_heads: int
    head_dim: int
    d_ff: int
    context: int
    vocab_size: int
    batch: int
    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    z_loss: float = 1e-4
    epsilon: float = 1e-6
    rope_theta: float = 10_000.0


PROBLEMS = {
    "block": Problem(  # 15.8M parameters
        d_model=384, n_layers=6, n_heads=6, head_dim=64, d_ff=1536, context=512, vocab_size=8192, batch=8
    ),
    "ladder": Problem(  # where the quickstart spends its time
        d_model=64, n_layers=2, n_heads=2, head_dim=32, d_ff=256, context=256, vocab_size=4096, batch=16
    ),
}


def weights(p: Problem) -> dict[str, np.ndarray]:
    """Initial float32 weights under the names and shapes of `areca.model.decoder`."""
    rng = np.random.default_rng(0)
    L, D, H, K, F, V = p.n_layers, p.d_model, p.n_heads, p.head_dim, p.d_ff, p.vocab_size

    def normal(*shape: int, std: float) -> np.ndarray:
        return (std * rng.standard_normal(shape)).astype(np.float32)

    return {
        "embedding": normal(V, D, std=1.0),
        "query": normal(L, D, H, K, std=D**-0.5),
        "key": normal(L, D, K, std=D**-0.5),
        "value": normal(L, D, K, std=D**-0.5),
        "gate": normal(L, D, F, std=D**-0.5),
        "up": normal(L, D, F, std=D**-0.5),
        "attention_out": normal(L, H, K, D, std=(H * K) ** -0.5),
        "mlp_out": normal(L, F, D, std=F**-0.5),
    }


def batch(p: Problem, step: int) -> np.ndarray:
    """Tokens [B, T + 1] of a step, uneven in frequency as text is."""
    rng = np.random.default_rng([1, step])
    return (p.vocab_size * rng.random((p.batch, p.context + 1)) ** 3).astype(np.int32)
