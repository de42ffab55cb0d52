"""The shape of a decoder: PaLM's block (Chowdhery et al. 2022, section 2). Importable without jax.

Legend: D model width, H heads, K head width, F feed-forward width, V vocabulary, L layers, T context.
"""

from dataclasses import dataclass

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

    def resolved(self) -> "ModelConfig":
        """This configuration with every field explicit; ConfigError names the first that can't be."""
        from dataclasses import replace

        for name in ("vocab_size", "d_model", "n_layers", "n_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("head_dim", "d_ff"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; leave it 0 for PaLM's rule or give a width.")
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "head_dim", "d_ff"):
            if getattr(self, name) >= 2**31:
                raise ConfigError(f"{name} is {getattr(self, name):.3g}; a dimension ends at 2^31 - 1.")
        for name in ("rope_theta", "norm_epsilon"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be a positive number.")
        if not self.head_dim and self.d_model % self.n_heads:
            raise ConfigError(
                f"d_model {self.d_model} is not divisible by n_heads {self.n_heads}; "
                "choose a number of heads that divides it or set head_dim."
            )
        head_dim = self.head_dim or self.d_model // self.n_heads
        if head_dim % 2:
            raise ConfigError(f"head_dim is {head_dim}; RoPE rotates pairs, so it must be even.")
        return replace(self, head_dim=head_dim, d_ff=self.d_ff or 4 * self.d_model)


PRESETS: dict[str, ModelConfig] = {
    # Table 1 of the paper: heads x head width is not D for 540B.
    "palm-8b": ModelConfig(vocab_size=256_000, d_model=4096, n_layers=32, n_heads=16, head_dim=256),
    "palm-62b": ModelConfig(vocab_size=256_000, d_model=8192, n_layers=64, n_heads=32, head_dim=256),
    "palm-540b": ModelConfig(vocab_size=256_000, d_model=18_432, n_layers=118, n_heads=48, head_dim=256),
}
