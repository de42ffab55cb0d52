"""Concrete decoders to choose from: a family whose width grows with its depth. Importable without numpy."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from areca.errors import ConfigError
from areca.model.config import ModelConfig
from areca.model.counts import count_params

WIDTH_STEP = 16


def family(
    vocab_size: int, *, smallest: float = 1e3, largest: float = 1e12, like: ModelConfig | None = None
) -> list[ModelConfig]:
    """Decoders by rising N from `smallest` to `largest` parameters without embeddings, in PaLM's proportions.

    F = 4 D; width over depth rises slowly with size, as in published families (16 at a hundred thousand parameters,
    128 at 8 billion); heads are 16 to 128 wide, even, and divide D. Loss changes by a few percent at most over a wide
    range of shapes at the same N (Kaplan et al. 2020, section 3.1). Fields other than sizes come from `like`.
    """
    base = like or ModelConfig(vocab_size=vocab_size, d_model=WIDTH_STEP, n_layers=1, n_heads=1)
    base = replace(base, vocab_size=vocab_size, head_dim=0, d_ff=0)
    shapes: list[ModelConfig] = []
    width = WIDTH_STEP
    while not shapes or count_params(shapes[-1]).non_embedding <= largest:
        depths = sorted({math.floor(depth_for(width)), math.ceil(depth_for(width))})
        shapes += [replace(base, d_model=width, n_layers=n, n_heads=heads_for(width)) for n in depths]
        # Steps of about 6% in width, finer than any valley is sharp, on a grid that shards well where it is wide.
        grid = WIDTH_STEP if width < 512 else 64 if width < 2048 else 128
        width = (width // grid + max(1, round(0.06 * width / grid))) * grid
    return by_size(s for s in shapes if smallest <= count_params(s).non_embedding <= largest)


def depth_for(width: int) -> float:
    """Layers for a width: 2 at 32, 3 at 64, 5 at 128, 12 at 768, 32 at 4096, 118 at 18432."""
    return max(1.0, 0.37 * width**0.535 if width < 4096 else 32 * (width / 4096) ** 0.87)


def heads_for(width: int) -> int:
    """The number of heads that divides `width` into even heads nearest 32 (narrow), 64 or 128 (wide)."""
    target = 32 if width < 256 else 64 if width < 2048 else 128
    choices = [h for h in range(1, width // 8 + 1) if width % h == 0 and (width // h) % 2 == 0]
    return min(choices, key=lambda h: (abs(math.log(width / h / target)), h))


def interpolate(shapes: Sequence[ModelConfig], vocab_size: int) -> list[ModelConfig]:
    """A ladder's own shapes, continued between and beyond by `family` with their remaining fields."""
    if not shapes:
        raise ConfigError("there are no shapes to plan with; give a vocabulary size.")
    return by_size([*shapes, *family(vocab_size, like=shapes[0])])


def by_size(shapes: Iterable[ModelConfig]) -> list[ModelConfig]:
    """Rising in N, one shape for each N."""
    found: dict[int, ModelConfig] = {}
    for shape in shapes:
        found.setdefault(count_params(shape).non_embedding, shape.resolved())
    return [found[n] for n in sorted(found)]
