"""Decoders of other depth, width and heads with the same N, F making up for what they add or remove."""

import math
from dataclasses import replace

from areca.config import ModelConfig
from areca.errors import ConfigError
from areca.model.counts import count_params
from areca.study.recipe import heads_near_16

TOLERANCE = 0.01  # by which N may differ
WIDTHS = 8  # are multiples of this


def equal_shape(like: ModelConfig, layers: int) -> ModelConfig:
    """The decoder of so many layers with the N of `like`: the width at which F is nearest 4 D, and then that F."""
    wanted = count_params(like).non_embedding
    found = []
    for width in range(WIDTHS, 8 * like.d_model, WIDTHS):
        heads = heads_near_16(width)
        model = replace(like, d_model=width, n_layers=layers, n_heads=heads, head_dim=width // heads)
        if (filled := _filled(model, wanted)) is not None:
            found.append(filled)
    if not found:
        raise ConfigError(
            f"no decoder of {layers} layers has the {wanted:,} parameters of width {like.d_model} within "
            f"{TOLERANCE:.0%}; leave that depth out, or give a larger width."
        )
    return min(found, key=lambda m: abs(math.log(m.d_ff / (4 * m.d_model))))


def with_heads(like: ModelConfig, heads: int) -> ModelConfig:
    """`like` with other heads, F making up for what the shared key and value head takes or leaves."""
    if like.d_model % (2 * heads):
        raise ConfigError(f"--heads has {heads}, which does not divide the width {like.d_model} into even heads.")
    model = replace(like, n_heads=heads, head_dim=like.d_model // heads)
    filled = _filled(model, count_params(like).non_embedding)
    assert filled is not None
    return filled


def _filled(model: ModelConfig, wanted: int) -> ModelConfig | None:
    """`model` with the F that brings its N nearest `wanted`; None if that is no decoder, or off by TOLERANCE."""
    least = replace(model, d_ff=1)
    each = count_params(least).mlp
    d_ff = 1 + round((wanted - count_params(least).non_embedding) / each)
    if d_ff < 1:
        return None
    made = replace(model, d_ff=d_ff).resolved()
    return made if abs(count_params(made).non_embedding / wanted - 1) <= TOLERANCE else None
