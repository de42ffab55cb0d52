"""PaLM's decoder as `CohereForCausalLM` of transformers: the same block under other names.

x + attention(LN(x)) + mlp(LN(x)) with one LayerNorm that has a scale only, SwiGLU, interleaved rotary positions over
the whole head, any number of key-value heads, no biases, one embedding for input and output, and logits times
`logit_scale`.

Legend: D model width, H heads, G key-value heads, K head width, F feed-forward width, V vocabulary, L layers.

| ours          | shape        | theirs, model.layers.N.         | shape      |
|---------------|--------------|---------------------------------|------------|
| norm          | [L, D]       | input_layernorm                 | [D]        |
| query         | [L, D, H, K] | self_attn.q_proj                | [H K, D]   |
| key, value    | [L, D, G K]  | self_attn.k_proj, v_proj        | [G K, D]   |
| attention_out | [L, H, K, D] | self_attn.o_proj                | [D, H K]   |
| gate, up      | [L, D, F]    | mlp.gate_proj, up_proj          | [F, D]     |
| mlp_out       | [L, F, D]    | mlp.down_proj                   | [D, F]     |

`embedding` [V, D] is model.embed_tokens and the last `norm` [D] model.norm; every name ends in ".weight".
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from areca.errors import ConfigError, DataError
from areca.model.config import ModelConfig
from areca.model.parameters import Decoder, Layers

MODEL_TYPE, ARCHITECTURE = "cohere", "CohereForCausalLM"
EMBEDDING, LAST_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_NAMES = {
    "norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "mlp_out": "mlp.down_proj",
}
# What of a decoder can't be said there: our switch -> the only value that can.
_SAYS: dict[str, Any] = {
    "block": "parallel", "mlp": "swiglu", "positions": "rope", "tied": True, "biases": False,
}  # fmt: skip


def check(model: ModelConfig) -> None:
    """ConfigError, naming the switch, for a decoder that CohereForCausalLM is not."""
    for name, only in _SAYS.items():
        if (value := getattr(model, name)) != only:
            raise ConfigError(
                f"model.{name} is {_toml(value)}, which {ARCHITECTURE} can't say (it has {_toml(only)}), so this model "
                "has no export to Hugging Face."
            )


def logit_scale(model: ModelConfig) -> float:
    """What logits are multiplied by: D^-1/2, and muP's (D / base width)^-1/2 beyond the base width."""
    return (model.d_model * model.width_ratio) ** -0.5


def to_config(model: ModelConfig, context: int, eod_id: int) -> dict[str, Any]:
    """config.json of a model. ConfigError as of `check`.

    rope_theta is there twice, since transformers 5 reads `rope_parameters` and takes 500,000 without a word where it is
    absent, and others read `rope_theta`. The special tokens are there because Cohere's would be taken instead.
    `pad_token_id` is null: a padding row of the embedding gets no gradient, and documents begin with this one.
    """
    check(model)
    c = model.resolved()
    return {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "vocab_size": c.vocab_size,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context,
        "layer_norm_eps": c.norm_epsilon,
        "logit_scale": logit_scale(c),
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_qk_norm": False,
        "bos_token_id": eod_id,
        "eos_token_id": eod_id,
        "pad_token_id": None,
        "use_cache": True,
        "dtype": "float32",
    }


def shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor's name and shape, as Hugging Face has them."""
    c = model.resolved()
    D, X, GK, F = c.d_model, c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.d_ff
    of = {
        "norm": (D,), "query": (X, D), "key": (GK, D), "value": (GK, D), "attention_out": (D, X), "gate": (F, D),
        "up": (F, D), "mlp_out": (D, F),
    }  # fmt: skip
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (c.vocab_size, D)}
    for i in range(c.n_layers):
        found |= {_name(i, ours): shape for ours, shape in of.items()}
    return found | {LAST_NORM: (D,)}


def to_tensors(model: ModelConfig, params: Decoder) -> dict[str, np.ndarray]:
    """Parameters, or anything of their shapes, under Hugging Face's names and in its order of axes, contiguous."""
    layers = {ours: np.asarray(getattr(params.layers, ours)) for ours in _NAMES}

    def tensor(ours: str, i: int, shape: tuple[int, ...]) -> np.ndarray:
        value = layers[ours][i]
        return value if value.ndim == 1 else np.ascontiguousarray(value.reshape(shape[::-1]).T)

    found = {EMBEDDING: np.asarray(params.embedding), LAST_NORM: np.asarray(params.norm)}
    wanted = shapes(model)
    for i in range(model.n_layers):
        found |= {_name(i, ours): tensor(ours, i, wanted[_name(i, ours)]) for ours in _NAMES}
    return found


def from_tensors(model: ModelConfig, read: Callable[[str], np.ndarray]) -> Decoder:
    """The inverse of `to_tensors`: parameters from tensors that `read` gives by name, in float32, one at a time."""
    c = model.resolved()
    K = c.head_dim
    of: dict[str, tuple[int, ...]] = {"query": (c.d_model, c.n_heads, K), "attention_out": (c.n_heads, K, c.d_model)}

    def stacked(ours: str) -> np.ndarray:
        whole: np.ndarray | None = None
        for i in range(c.n_layers):
            value = read(_name(i, ours)).T
            value = value.reshape(of.get(ours, value.shape))
            if whole is None:
                whole = np.empty((c.n_layers, *value.shape), np.float32)
            whole[i] = value
        assert whole is not None
        return whole

    arrays: dict[str, Any] = {ours: stacked(ours) for ours in _NAMES}
    embedding, norm = (read(name) for name in (EMBEDDING, LAST_NORM))
    return Decoder(embedding=embedding, layers=Layers(**arrays), norm=norm)  # pyright: ignore[reportArgumentType]


def from_config(values: Any, name: str) -> tuple[ModelConfig, int, float]:
    """The decoder that a config.json describes, its context, and what its last norm is to be multiplied by.

    The last is 1 where `logit_scale` is D^-1/2; other scales go into that norm, to rounding. DataError, in a sentence
    that begins with `name`, for what is no CohereForCausalLM of ours, or is not said.
    """
    if not isinstance(values, dict):
        raise DataError(f"{name} is not the configuration of a model; it must be a JSON object.")
    if (kind := values.get("model_type")) != MODEL_TYPE:
        raise DataError(f"{name} has model_type {kind!r}; only {MODEL_TYPE!r} ({ARCHITECTURE}) can be imported.")
    c = _Reader(values, name)
    for key, only in (
        ("hidden_act", "silu"), ("tie_word_embeddings", True), ("attention_bias", False), ("use_qk_norm", False),
        ("rope_scaling", None), ("quantization_config", None),
    ):  # fmt: skip
        if (value := values.get(key, only)) != only:
            raise DataError(f"{name} has {key} {_json(value)}, which a model here can't have (only {_json(only)}).")
    D, H = c.whole("hidden_size"), c.whole("num_attention_heads")
    if values.get("head_dim") is None and D % H:
        raise DataError(f"{name} has hidden_size {D} and {H} attention heads, which don't divide it, and no head_dim.")
    try:
        model = ModelConfig(
            vocab_size=c.whole("vocab_size"),
            d_model=D,
            n_layers=c.whole("num_hidden_layers"),
            n_heads=H,
            head_dim=c.whole("head_dim", D // H),
            d_ff=c.whole("intermediate_size"),
            n_kv_heads=c.whole("num_key_value_heads", H),
            rope_theta=_rope_theta(c),
            norm_epsilon=c.number("layer_norm_eps", 1e-5),
            base_width=0,
        ).resolved()
    except ConfigError as error:
        raise DataError(f"{name} describes a model that can't be: {error}") from None
    factor = c.number("logit_scale", 0.0625) * math.sqrt(D)
    return model, c.whole("max_position_embeddings", 8192), 1.0 if abs(factor - 1) < 1e-6 else factor


def _rope_theta(c: "_Reader") -> float:
    """Of `rope_parameters` or `rope_theta`; what is meant without either depends on the version of transformers."""
    rope = c.values.get("rope_parameters")
    if rope is None:
        return c.number("rope_theta")
    if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
        raise DataError(f"{c.name} has rope_parameters {_json(rope)}; only rope_type 'default' can be imported.")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise DataError(f"{c.name} rotates a part of each head (partial_rotary_factor), and a model here all of it.")
    inner, outer = rope.get("rope_theta"), c.values.get("rope_theta")
    if inner is not None and outer is not None and inner != outer:
        raise DataError(f"{c.name} has rope_theta {outer} and {inner} in rope_parameters; make them one.")
    return c.number("rope_theta") if inner is None else _Reader(rope, c.name).number("rope_theta")


class _Reader:
    """Numbers of a JSON object; DataError where there is none, or something else."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise DataError(f"{self.name} has {key} {_json(value)}; it must be a whole number from 1 to 2^31 - 1.")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
            raise DataError(f"{self.name} has {key} {_json(value)}; it must be a positive number.")
        return float(value)

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise DataError(f"{self.name} has no {key}; add what the model was trained with.")
        return value


def _name(layer: int, ours: str) -> str:
    return f"model.layers.{layer}.{_NAMES[ours]}.weight"


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _json(value: Any) -> str:
    import json

    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:77]}..."
