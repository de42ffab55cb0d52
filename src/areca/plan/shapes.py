"""Concrete decoders to choose from: a family whose width grows with its depth. Importable without numpy."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from areca.errors import ConfigError
from areca.model.config import ModelConfig
from areca.model.counts import count_params

WIDTH_STEP = 16


def family(
    vocab_size: int,
    *,
    smallest: float = 1e3,
    largest: float = 1e12,
    like: ModelConfig | None = None,
    mesh: tuple[int, int] = (1, 1),
) -> list[ModelConfig]:
    """Decoders by rising N from `smallest` to `largest` parameters without embeddings, in PaLM's proportions.

    F = 4 D; width over depth rises slowly with size, as in published families (16 at a hundred thousand parameters,
    128 at 8 billion); heads are 16 to 128 wide, even, and divide D. Loss changes by a few percent at most over a wide
    range of shapes at the same N (Kaplan et al. 2020, section 3.1). Fields other than sizes come from `like`.

    On a `mesh` of (data, model) devices D divides over all of them and heads and F over model, as
    `areca.model.layout` cuts them (V is padded there). ConfigError when no size in the range does.
    """
    data, model = mesh
    base = like or ModelConfig(vocab_size=vocab_size, d_model=WIDTH_STEP, n_layers=1, n_heads=1)
    base = replace(base, vocab_size=vocab_size, head_dim=0, d_ff=0)
    step = math.lcm(WIDTH_STEP, data * model, 2 * model)
    shapes: list[ModelConfig] = []
    width = step
    while not shapes or count_params(shapes[-1]).non_embedding <= largest:
        # Steps of about 6% in width, finer than any valley is sharp, on a grid that shards well where it is wide.
        following = width
        for grid in (step, math.lcm(step, 64), math.lcm(step, 128)):
            if following == width or following >= (512 if grid % 128 else 2048):
                following = (width // grid + max(1, round(0.06 * width / grid))) * grid
        heads = heads_for(width, model)
        shapes += [_with_sizes(base, width, n, heads) for n in _depths(width, following / width if step > 16 else 1.0)]
        width = following
    found = by_size(s for s in shapes if smallest <= count_params(s).non_embedding <= largest)
    if not found:
        raise ConfigError(
            f"no shape of {smallest:.2g} to {largest:.2g} parameters divides over a mesh of {data} x {model} (data x "
            f"model): its widths are multiples of {step:,}; choose a smaller mesh."
        )
    return found


def _with_sizes(base: ModelConfig, width: int, layers: int, heads: int) -> ModelConfig:
    """`base` at these sizes: multi-head stays multi-head; grouped heads stay where they divide, else become one."""
    kv = heads if base.n_kv_heads == base.n_heads > 1 else base.n_kv_heads if heads % base.n_kv_heads == 0 else 1
    return replace(base, d_model=width, n_layers=layers, n_heads=heads, n_kv_heads=kv)


def _depths(width: int, gap: float) -> list[int]:
    """The whole depths about `depth_for`; where the next width is `gap` times as wide, those that fill the gap in N."""
    depth = depth_for(width)
    around = [depth * gap**power for power in (-1.25, -0.75, -0.25, 0.25, 0.75, 1.25)] if gap > 1.07 else [depth]
    return sorted({max(1, end) for d in around for end in (math.floor(d), math.ceil(d))})


def parse_mesh(words: str) -> tuple[int, int]:
    """(data, model) of "DATAxMODEL"; ConfigError for anything else."""
    found = re.fullmatch(r"([1-9]\d{0,6})[xX]([1-9]\d{0,6})", words)
    if not found:
        raise ConfigError(f"the mesh is {words!r}; write it as DATAxMODEL, for example 8x4.")
    return int(found[1]), int(found[2])


def depth_for(width: int) -> float:
    """Layers for a width: 2 at 32, 3 at 64, 5 at 128, 12 at 768, 32 at 4096, 118 at 18432."""
    return max(1.0, 0.37 * width**0.535 if width < 4096 else 32 * (width / 4096) ** 0.87)


def heads_for(width: int, multiple: int = 1) -> int:
    """The number of heads that divides `width` into even heads nearest 32 (narrow), 64 or 128 (wide).

    On a mesh it is a `multiple` of the model axis, which divides the width into even parts.
    """
    target = 32 if width < 256 else 64 if width < 2048 else 128
    most = max(width // 8, multiple)
    choices = [h for h in range(multiple, most + 1, multiple) if width % h == 0 and (width // h) % 2 == 0]
    return min(choices, key=lambda h: (abs(math.log(width / h / target)), h))


def interpolate(shapes: Sequence[ModelConfig], vocab_size: int, mesh: tuple[int, int] = (1, 1)) -> list[ModelConfig]:
    """A ladder's own shapes, continued between and beyond by `family` with their remaining fields."""
    if not shapes:
        raise ConfigError("there are no shapes to plan with; give a vocabulary size.")
    own = shapes if mesh == (1, 1) else [s for s in shapes if divides(s, mesh)]
    return by_size([*own, *family(vocab_size, like=shapes[0], mesh=mesh)])


def divides(shape: ModelConfig, mesh: tuple[int, int]) -> bool:
    """Whether `areca.model.layout` can cut a decoder over (data, model) devices."""
    from areca.model.layout import Layout

    try:
        Layout(*mesh).check(shape)
    except ConfigError:
        return False
    return True


def by_size(shapes: Iterable[ModelConfig]) -> list[ModelConfig]:
    """Rising in N, one shape for each N."""
    found: dict[int, ModelConfig] = {}
    for shape in shapes:
        found.setdefault(count_params(shape).non_embedding, shape.resolved())
    return [found[n] for n in sorted(found)]
