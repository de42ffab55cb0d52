"""Parameters and FLOPs of a decoder, by arithmetic on its shape. Importable without jax.

Three numbers are easily confused and are kept apart everywhere in Areca:

- `exact`: FLOPs of all matrix multiplications of a training step, forward and backward (3 x forward), with the
  full T x T attention and the output logits; PaLM's convention (Appendix B): 6 N_matmul + 12 L H K T a token.
- `six_nd`: 6 N D with N the non-embedding parameters (Kaplan et al. 2020, section 2.1).
- PaLM's MFU uses 6 N_total + 12 L H K T a token, with N_total all parameters (a separate input embedding and learned
  positions, which multiply nothing, are left out); HFU adds what is computed a second
  time because it was not kept (rematerialization).
"""

from dataclasses import dataclass

from areca.errors import ConfigError
from areca.model.config import ModelConfig

REMAT = ("none", "selective", "block")  # policies of rematerialization whose FLOPs are defined here


@dataclass(frozen=True)
class ParamCounts:
    """Parameters of a decoder by where they are. `non_embedding` is the N of the scaling laws."""

    embedding: int  # with a separate output and learned positions, if there are
    attention: int
    mlp: int
    norms: int
    biases: int = 0

    @property
    def non_embedding(self) -> int:
        return self.attention + self.mlp + self.norms + self.biases

    @property
    def total(self) -> int:
        return self.embedding + self.non_embedding


def count_params(config: ModelConfig) -> ParamCounts:
    """PaLM's: embeddings V D (shared with the output), L x (2 D H K + 2 D K + 3 D F) and (L + 1) D of norms.

    With G key-value heads 2 D G K; without a gate 2 D F; a serial block has two norms; with biases one for each output
    of a product and of a norm.
    """
    c = config.resolved()
    heads, shared = c.n_heads * c.head_dim, 2 * c.n_kv_heads * c.head_dim
    rising = 2 if c.mlp == "swiglu" else 1  # matrices from D to F
    norms = c.n_layers * (2 if c.block == "serial" else 1) + 1
    biases = c.n_layers * (heads + shared + rising * c.d_ff + 2 * c.d_model) + norms * c.d_model
    return ParamCounts(
        embedding=c.d_model * ((1 if c.tied else 2) * c.vocab_size + c.n_positions),
        attention=c.n_layers * c.d_model * (2 * heads + shared),
        mlp=c.n_layers * (rising + 1) * c.d_model * c.d_ff,
        norms=norms * c.d_model,
        biases=biases if c.biases else 0,
    )


def attention_flops_per_token(config: ModelConfig, context: int) -> int:
    """Training FLOPs of the T x T products, 12 L H K T a token (causality not discounted, PaLM Appendix B)."""
    c = config.resolved()
    return 12 * c.n_layers * c.n_heads * c.head_dim * context


def exact_flops_per_token(config: ModelConfig, context: int) -> int:
    """Training FLOPs a token of every matrix multiplication, the output logits included."""
    n = count_params(config)
    logits = config.vocab_size * config.d_model  # rows that are looked up multiply nothing
    return 6 * (logits + n.attention + n.mlp) + attention_flops_per_token(config, context)


def six_nd(config: ModelConfig, tokens: int) -> int:
    """C = 6 N D with N without embeddings: the estimate of Kaplan et al. 2020."""
    return 6 * count_params(config).non_embedding * tokens


def hidden_matrices(config: ModelConfig) -> list[tuple[int, int]]:
    """The sides, shorter first, of a layer's matrices, which are those that Muon moves."""
    c = config.resolved()
    heads, shared = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    outer = [heads, heads, shared, shared, *([c.d_ff] * (3 if c.mlp == "swiglu" else 2))]
    return [(min(c.d_model, x), max(c.d_model, x)) for x in outer]


def newton_schulz_flops(config: ModelConfig, iterations: int = 5) -> int:
    """FLOPs of Muon's iterations in one step, which `exact` does not count (it is of the model).

    Of a matrix with sides m <= n an iteration is X X^T, its square and a product with X: 4 m^2 n + 2 m^3.
    """
    return config.n_layers * iterations * sum(4 * m * m * n + 2 * m**3 for m, n in hidden_matrices(config))


def recomputed_flops_per_token(config: ModelConfig, context: int, remat: str) -> int:
    """FLOPs a token that the backward pass spends on computing activations again, by the policy's name.

    - "none": nothing; every activation is kept.
    - "selective": no product either; norms, rotations and SwiGLU are computed again from the products that are kept.
    - "block": one activation is kept for each block and the rest of the block is computed again: its products of the
      input, 2 L (D H K + 2 D G K + 2 D F), and the forward T x T products, 4 L H K T. The two output products are not:
      no gradient needs their results; but in a serial block the second branch's norm needs that of the first.

    Counted is what the policy adds to the layers, by the same convention as the rest (T x T in full, whatever the
    attention kernel skips or repeats). ConfigError for a policy that is not defined here.
    """
    if remat not in REMAT:
        raise ConfigError(f"remat is {remat!r}; FLOPs are known for {', '.join(map(repr, REMAT))}.")
    if remat != "block":
        return 0
    c = config.resolved()
    rising = 2 if c.mlp == "swiglu" else 1
    again = c.d_model * (c.n_heads * c.head_dim + 2 * c.n_kv_heads * c.head_dim + rising * c.d_ff)
    if c.block == "serial":
        again += c.d_model * c.n_heads * c.head_dim
    return 2 * c.n_layers * again + attention_flops_per_token(config, context) // 3


def hardware_flops_per_token(
    config: ModelConfig, context: int, remat: str = "none", *, recomputed: float | None = None
) -> float:
    """Numerator of PaLM's HFU: 6 N_total + 12 L H K T and what `remat` computes again.

    `recomputed` gives those FLOPs a token in place of a policy's name, for a system that kept something else.
    """
    again = recomputed_flops_per_token(config, context, remat) if recomputed is None else recomputed
    return 6 * _multiplied(config) + attention_flops_per_token(config, context) + again


def _multiplied(config: ModelConfig) -> int:
    """PaLM's N_total: all parameters, but for tables of which rows are only looked up. PaLM's own has none."""
    c = config.resolved()
    looked_up = c.n_positions + (0 if c.tied else c.vocab_size)
    return count_params(c).total - looked_up * c.d_model


def model_flops_utilisation(
    config: ModelConfig,
    *,
    context: int,
    tokens_per_second: float,
    chips: int,
    peak_flops_per_chip: float,
    with_attention: bool = True,
) -> float:
    """MFU of PaLM Appendix B as a fraction: observed tokens/s x (6 N_total + 12 L H K T) / peak FLOP/s."""
    per_token = 6 * _multiplied(config)
    if with_attention:
        per_token += attention_flops_per_token(config, context)
    return utilisation(
        per_token, tokens_per_second=tokens_per_second, chips=chips, peak_flops_per_chip=peak_flops_per_chip
    )


def hardware_flops_utilisation(
    config: ModelConfig,
    *,
    context: int,
    tokens_per_second: float,
    chips: int,
    peak_flops_per_chip: float,
    remat: str = "none",
) -> float:
    """HFU of PaLM section 4.1 as a fraction: MFU, with the FLOPs of rematerialization counted as work."""
    return utilisation(
        hardware_flops_per_token(config, context, remat),
        tokens_per_second=tokens_per_second,
        chips=chips,
        peak_flops_per_chip=peak_flops_per_chip,
    )


def utilisation(flops_per_token: float, *, tokens_per_second: float, chips: int, peak_flops_per_chip: float) -> float:
    """Observed tokens/s x FLOPs a token / peak FLOP/s of all chips, as a fraction."""
    if not (0 < tokens_per_second < 1e30 and 1 <= chips < 1e30 and 0 < peak_flops_per_chip < 1e30):
        raise ConfigError(
            f"MFU needs positive tokens per second, chips and peak FLOP/s, all under 1e30; "
            f"got {tokens_per_second}, {chips} and {peak_flops_per_chip}."
        )
    return tokens_per_second * flops_per_token / (chips * peak_flops_per_chip)
