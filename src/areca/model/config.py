"""The shape of a decoder: PaLM's (Chowdhery et al. 2022, section 2), each choice of which has another. Importable
without jax.

Legend: D model width, H heads, G key-value heads, K head width, F feed-forward width, V vocabulary, L layers,
T context, P learned positions.
"""

from dataclasses import dataclass
from typing import Literal

from areca.errors import ConfigError


@dataclass(frozen=True)
class ModelConfig:
    """One decoder. Fields left 0 take PaLM's rule: `head_dim` D / H, `d_ff` 4 D. `resolved()` fills them in."""

    vocab_size: int
    d_model: int
    n_layers: int
    n_heads: int
    head_dim: int = 0
    d_ff: int = 0
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    block: Literal["parallel", "serial"] = "parallel"  # both branches read one norm, or the second reads the first's
    n_kv_heads: int = 1  # G: 1 multi-query (Shazeer 2019), H multi-head, between them grouped
    mlp: Literal["swiglu", "gelu"] = "swiglu"  # three matrices or two; F is the same number for both
    positions: Literal["rope", "learned"] = "rope"
    n_positions: int = 0  # P: rows of learned positions, at least the context
    tied: bool = True  # the output's embedding is the input's
    biases: bool = False  # of every product and norm
    base_width: int = 128  # beyond this D muP's parametrization, up to it PaLM's; 0: PaLM's at every D
    document_mask: bool = False  # in training and held-out evaluation, attention sees its own document only
    document_end: int = -1  # the token that ends a document: the store's, filled in where documents are masked

    @property
    def width_ratio(self) -> float:
        """How much wider than muP's base width it is, at least 1 (Yang et al. 2022, table 8).

        By it, or its root, learning rates of hidden matrices and logits are divided, so that a rate chosen at the base
        width serves (docs/which-learning-rate.md).
        """
        return max(1.0, self.d_model / self.base_width) if self.base_width else 1.0

    def check_context(self, name: str, context: int) -> None:
        """ConfigError if the model has not learned so many positions; `name` is what the user calls the context."""
        if self.positions == "learned" and context > self.n_positions:
            raise ConfigError(
                f"{name} is {context} and the model learns {self.n_positions} positions; give n_positions at least "
                "the context."
            )

    def resolved(self) -> "ModelConfig":
        """This configuration with every field explicit; ConfigError names the first that can't be."""
        from dataclasses import replace

        for name in ("vocab_size", "d_model", "n_layers", "n_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.base_width < 0:
            raise ConfigError(
                f"base_width is {self.base_width}; give a width, or 0 for PaLM's parametrization at every D."
            )
        for name in ("head_dim", "d_ff"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; leave it 0 for PaLM's rule or give a width.")
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "head_dim", "d_ff"):
            if getattr(self, name) >= 2**31:
                raise ConfigError(f"{name} is {min(getattr(self, name), 1e300):.3g}; a dimension ends at 2^31 - 1.")
        for name in ("rope_theta", "norm_epsilon"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive number.")
        if not self.head_dim and self.d_model % self.n_heads:
            raise ConfigError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}; "
                "choose a number of heads that divides it or set head_dim."
            )
        head_dim = self.head_dim or self.d_model // self.n_heads
        if head_dim % 2 and self.positions == "rope":
            raise ConfigError(f"head_dim is {head_dim}; RoPE rotates pairs, so it must be even.")
        if self.n_kv_heads < 1 or self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_kv_heads is {self.n_kv_heads}; it must divide n_heads {self.n_heads} (1 is multi-query)."
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, choices))}.")
        if (self.positions == "learned") != (self.n_positions > 0):
            raise ConfigError(
                f"n_positions is {self.n_positions} with {self.positions} positions; give the context's length for "
                "learned ones and leave it 0 for RoPE."
            )
        if self.document_mask and self.positions == "learned":
            raise ConfigError(
                "document_mask is true and positions is 'learned', whose positions would not begin anew with each "
                "document; set positions to 'rope' or document_mask to false."
            )
        return replace(self, head_dim=head_dim, d_ff=self.d_ff or 4 * self.d_model)


CHOICES = {"block": ("parallel", "serial"), "mlp": ("swiglu", "gelu"), "positions": ("rope", "learned")}

PRESETS: dict[str, ModelConfig] = {
    # Table 1 of the paper: heads x head width is not D for 540B. Its parametrization is its own at every width.
    name: ModelConfig(256_000, width, layers, heads, head_dim=256, base_width=0)
    for name, width, layers, heads in (
        ("palm-8b", 4096, 32, 16),
        ("palm-62b", 8192, 64, 32),
        ("palm-540b", 18_432, 118, 48),
    )
}
