"""What `areca count` says of a model: parameters, FLOPs, memory and MFU by arithmetic. Importable without jax.

The counts themselves are in counts.py; here they are gathered under the names that run.json and result.json use.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from areca import chips as chip_table
from areca.config import RunConfig, from_dict, read_table
from areca.errors import ConfigError, check_at_least_one, check_positive, closest
from areca.model.config import PRESETS, ModelConfig
from areca.model.counts import (
    attention_flops_per_token,
    count_params,
    exact_flops_per_token,
    hardware_flops_per_token,
    hardware_flops_utilisation,
    model_flops_utilisation,
    six_nd,
)

FLOAT32_BYTES = 4
PALM_CONTEXT = 2048
MOST_TOKENS = 1e30  # more is a slip of the keyboard, and beyond floating point once multiplied


@dataclass(frozen=True)
class Shape:
    """A model with the context it is trained at, and the name to call it by."""

    name: str
    config: ModelConfig
    context: int


def load_shape(model: str, context: int | None = None, **widths: int | None) -> Shape:
    """The shape that a preset's name, a file or bare widths mean; `widths` given override the model's.

    A TOML or JSON file holds a ModelConfig, a RunConfig (its "model" is taken, and its context unless one is given), or
    is the run.json of a run. ConfigError or DataError says what can't be read or is missing.
    """
    for name, value in {"context": context, **widths}.items():
        check_at_least_one(f"--{name.replace('_', '-')}", value)
    given: dict[str, Any] = {name: value for name, value in widths.items() if value is not None}
    if not model:
        missing = [
            f"--{n.replace('_', '-')}" for n in ("vocab_size", "d_model", "n_layers", "n_heads") if n not in given
        ]
        if missing:
            raise ConfigError(
                f"a shape needs {' and '.join(missing)} too; or name a model ({', '.join(PRESETS)}) or a file."
            )
        shape = Shape("this shape", ModelConfig(**given), PALM_CONTEXT)
    elif model in PRESETS:
        shape = Shape(model, replace(PRESETS[model], **given), PALM_CONTEXT)
    elif model.endswith((".json", ".toml")) or Path(model).exists():
        shape = _from_file(model)
        shape = replace(shape, config=replace(shape.config, **given))
    else:
        raise ConfigError(
            f"there is no model {model!r}{closest(model, PRESETS)}; name one of {', '.join(PRESETS)}, or a TOML or "
            "JSON file."
        )
    return Shape(shape.name, shape.config.resolved(), context or shape.context)


def _from_file(path: str) -> Shape:
    values = read_table(path)
    if isinstance(values, dict) and isinstance(values.get("config"), dict):
        values = values["config"]
    if isinstance(values, dict) and "model" in values:
        run: RunConfig = from_dict(values, RunConfig, f"{path}: ")
        return Shape(path, run.model, run.data.context)
    return Shape(path, from_dict(values, ModelConfig, f"{path}: "), PALM_CONTEXT)


def peak_of(chip: str = "", peak_tflops: float | None = None) -> tuple[float | None, str]:
    """A chip's peak FLOP/s and where it is from, by its name, its file or the number itself; (None, "") for neither."""
    check_positive("--peak-tflops", peak_tflops, "275", most=1e18)
    if not chip:
        return (None, "") if peak_tflops is None else (peak_tflops * 1e12, "as given")
    if peak_tflops is not None:
        raise ConfigError(f"the peak is given twice, by --chip {chip} and --peak-tflops {peak_tflops:g}; give one.")
    found = chip_table.chip(chip)
    return found.peak(), f"{found.name}, bfloat16: {found.sources['peak_flops']}"


def summarise(
    shape: Shape,
    *,
    tokens: float | None = None,
    tokens_per_second: float | None = None,
    chips: int = 1,
    peak_flops_per_chip: float | None = None,
    remat: str = "",
) -> dict[str, Any]:
    """Parameters, training FLOPs a token and in all, float32 memory, MFU and HFU; what was not asked for is None.

    `remat` names what the backward pass computes again (counts.REMAT) and asks for the hardware's FLOPs and HFU.
    Raises ConfigError for a number of tokens that is none, and for an MFU without the chip's peak: an unknown chip has
    no MFU.
    """
    if tokens is not None and (not 1 <= tokens < MOST_TOKENS or tokens != int(tokens)):
        raise ConfigError(f"tokens is {tokens}; give a whole number of training tokens, such as 780e9.")
    if chips < 1:
        raise ConfigError(f"chips is {chips}; give how many accelerators share the work, at least 1.")
    n = count_params(shape.config)
    exact = exact_flops_per_token(shape.config, shape.context)
    return {
        "model": shape.name,
        "config": asdict(shape.config),
        "context": shape.context,
        "n_params": n.non_embedding,
        "n_params_total": n.total,
        "n_params_in_matrices": n.total - n.norms - n.biases,  # what PaLM's Table 1 gives
        "n_params_by_part": asdict(n),
        "exact_flops_per_token": exact,
        "attention_flops_per_token": attention_flops_per_token(shape.config, shape.context),
        "six_n_flops_per_token": six_nd(shape.config, 1),
        "remat": remat or None,
        "hardware_flops_per_token": hardware_flops_per_token(shape.config, shape.context, remat) if remat else None,
        "n_tokens": None if tokens is None else int(tokens),
        "flops_exact": None if tokens is None else exact * int(tokens),
        "flops_6nd": None if tokens is None else six_nd(shape.config, int(tokens)),
        # Adafactor without factorization and Adam keep the same two moments for each parameter.
        "memory_bytes_float32": {
            "parameters": FLOAT32_BYTES * n.total,
            "gradients": FLOAT32_BYTES * n.total,
            "optimizer_state": 2 * FLOAT32_BYTES * n.total,
        },
        "peak_flops_per_chip": peak_flops_per_chip,
        **_utilisation(shape, tokens_per_second, chips, peak_flops_per_chip, remat),
    }


def _utilisation(
    shape: Shape, tokens_per_second: float | None, chips: int, peak: float | None, remat: str
) -> dict[str, float | None]:
    if tokens_per_second is None and peak is None:
        return {"mfu": None, "mfu_without_attention": None, "hfu": None}
    if tokens_per_second is None or peak is None:
        missing = "--chip or --peak-tflops" if peak is None else "--tokens-per-second"
        raise ConfigError(
            f"MFU needs {missing} too: it is observed tokens/s x FLOPs a token over the chips' peak FLOP/s."
        )

    given: dict[str, Any] = {
        "context": shape.context, "tokens_per_second": tokens_per_second, "chips": chips, "peak_flops_per_chip": peak
    }  # fmt: skip
    return {
        "mfu": model_flops_utilisation(shape.config, **given),
        "mfu_without_attention": model_flops_utilisation(shape.config, **given, with_attention=False),
        "hfu": hardware_flops_utilisation(shape.config, **given, remat=remat) if remat else None,
    }
