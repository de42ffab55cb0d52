"""RunConfig: everything that determines a run, as frozen dataclasses. Importable without jax.

A run's numbers are a function of its RunConfig, the token store's fingerprint, the versions and the topology; all
are written to run.json. Quantities along training (warm-up, batch ramp) are in tokens, so they hold across batches.
"""

import sys
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from areca.errors import ConfigError, closest
from areca.files import read_table, sha256_json
from areca.model.config import ModelConfig


@dataclass(frozen=True)
class DataConfig:
    """Which tokens, in which order."""

    store: str  # directory of the token store
    context: int = 128  # T: tokens a sequence predicts
    seed: int = 0  # of the order of the examples
    weights: tuple[tuple[str, float], ...] = ()  # mixture by tokens, ((corpus, weight), ...); () = by size
    fraction: float = (
        1.0  # of each corpus' training windows, the first of a fixed order of the seed; smaller are nested
    )


@dataclass(frozen=True)
class AnnealConfig:
    """Another mixture of the store's corpora for the end of a run (`areca.train.anneal`)."""

    weights: tuple[tuple[str, float], ...] = ()  # as those of `data`; (): there is no anneal
    start: int = 0  # tokens seen, from which on steps read this mixture; 0: where the decay of 'wsd' begins


@dataclass(frozen=True)
class OptimizerConfig:
    """PaLM's optimizer (Adafactor without factorization), Adam, or Muon for the matrices and Adam for the rest."""

    name: Literal["adafactor", "adam", "muon"] = "adafactor"
    learning_rate: float = 1e-2  # peak; for adafactor multiplied by each matrix' root mean square
    momentum: float = 0.9  # beta1
    beta2: float = 0.0  # 0: adafactor's 1 - k^-0.8; adam and muon (for what is no matrix) need a value
    clip_norm: float = 1.0
    weight_decay: float = 1.0  # adafactor: times learning_rate^2 a step (PaLM); adam, muon: times learning_rate
    muon_scale: Literal["spectral", "rms"] = "spectral"  # what an orthogonal step is multiplied by (areca.train.muon)
    z_loss: float = 1e-4


@dataclass(frozen=True)
class ScheduleConfig:
    """Learning rate as a fraction of the peak, a function of tokens seen."""

    name: Literal["cosine", "linear", "rsqrt", "wsd", "constant"] = "cosine"
    warmup_tokens: int = 0
    final_fraction: float = 0.1  # of the peak, reached at the last token (cosine, linear, wsd)
    hold_tokens: int = 0  # rsqrt: constant until here, then (hold / tokens)^0.5 (PaLM: 10k steps)
    decay_tokens: int = 0  # wsd: constant until so many tokens before the last, then down to final_fraction
    decay: Literal["linear", "sqrt"] = "linear"  # wsd: its shape; sqrt falls as 1 - sqrt (Haegele et al. 2024)


@dataclass(frozen=True)
class BatchConfig:
    """Sequences a step, as a function of tokens seen: ((from_token, sequences), ...), the first from 0."""

    ramp: tuple[tuple[int, int], ...] = ((0, 16),)
    accumulate: int = 1  # equal parts of a batch whose gradients are computed one after another: less memory


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation, the same tokens whatever the training batch."""

    every_tokens: int = 0  # 0: only at the end
    max_tokens: int = 262_144  # held-out tokens read, at most; 0: all
    batch: int = 32  # sequences at once; does not change the result beyond rounding


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save and what to keep."""

    every_steps: int = 0  # 0: chosen by what a save costs, about 1% of the time; no bit depends on it
    keep_last: int = 2
    keep_every_steps: int = 0  # also save and keep each of these; 0: none beside the last


@dataclass(frozen=True)
class ParallelConfig:
    """The mesh of devices of one island, and what a layer keeps for its backward pass (`areca.model.layout`)."""

    data: int = 1  # devices that share the batch; parameters are cut over all devices
    model: int = 1  # devices that share heads, feed-forward width and vocabulary
    remat: Literal["none", "selective", "block"] = "none"  # kept: all, the outputs of products, the layer's input


@dataclass(frozen=True)
class IslandsConfig:
    """Islands that train one model, each a mesh of `parallel` with all parameters (`areca.train.islands`).

    The batch is cut into `shards`, whose gradients are summed in their order; that, the segments and the wire's type
    are part of the numbers, and how many islands carry the shards is not.
    """

    count: int = 1
    shards: int = 0  # equal parts of a batch; 0: one for each island, and on one island the whole batch in one program
    segments: int = 0  # of the backward pass, after each of which gradients leave; 0: 4, or as many as layers
    lengths: tuple[int, ...] = ()  # layers of each segment, from the last layers to the first; (): nearly equal
    wire: Literal["float32", "bfloat16"] = "float32"  # type of the gradients that are summed, travelled or not
    digest_every: int = 50  # steps after which the islands' parameters are compared
    on: Literal["devices", "processes", "ray"] = "devices"  # of this process, or processes here or on a Ray cluster
    processes: int = 1  # of each island that is not of this process; they share its devices evenly
    chunk_mb: float = 4.0  # of what islands send each other between processes, 2^20 bytes
    flows: int = 1  # connections from an island's process to another's
    deadline: float = 300.0  # seconds without progress after which an island is called stuck
    restart: bool = True  # start the process of a lost island again; it joins at the end of a step


@dataclass(frozen=True)
class PipelineConfig:
    """Stages that train one model, each an island with the parameters of its own layers (`areca.train.pipeline.run`).

    The batch is cut into `microbatches`, whose gradients are summed in their order; that and how many `layers` one
    program computes are part of the numbers. How many stages there are and their schedule are not.
    """

    stages: int = 1
    microbatches: int = 0  # equal parts of a batch; 0: no pipeline
    schedule: Literal["1f1b", "gpipe"] = "1f1b"  # 1f1b: backward as soon as it can be; gpipe: all forward first
    layers: int = 1  # that one program computes, at most: the least that a stage can have


@dataclass(frozen=True)
class GuardConfig:
    """What to do about a spike of the loss: go back and skip, as PaLM did (section 5.1; docs/resume-rewind-skip.md).

    A step is beyond if its log loss, or the log of its update norm over the learning rate, lies `threshold` robust
    deviations (1.4826 MAD, with a floor) over the median of the `window` steps before it. `patience` such steps in a
    row are a spike; a loss or norm that is not finite is one at once.
    """

    enabled: bool = True  # False: only a loss that is not finite stops the run
    threshold: float = 6.0
    window: int = 128  # steps
    min_steps: int = 64  # in the window before anything but what is not finite is called a spike
    patience: int = 3  # steps in a row: one odd batch is no spike
    rewind_steps: int = 100  # before the first step of the spike (PaLM: about 100)
    skip_batches: int = 300  # from there on, so that those of the spike are among them (PaLM: 200 to 500)
    max_rewinds: int = 20  # in the whole run (PaLM 540B had about 20 spikes); then it stops and says why


@dataclass(frozen=True)
class TrackConfig:
    """Where the numbers of metrics.jsonl go as well (`areca.track`). No number of the run depends on it."""

    to: tuple[str, ...] = ()  # "tensorboard", "wandb", "trackio"
    project: str = "areca"  # that the run is in there


@dataclass(frozen=True)
class RunConfig:
    """One training run."""

    model: ModelConfig
    data: DataConfig
    tokens: int  # D: training stops at the first step that has seen as many
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    anneal: AnnealConfig = field(default_factory=AnnealConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    seed: int = 0  # of the initial parameters
    init_from: str = ""  # directory of a run or a model whose parameters are the initial ones; "": drawn from the seed
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    islands: IslandsConfig = field(default_factory=IslandsConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    noise_parts: int = 0  # equal parts of a batch to measure the gradient noise scale from, summed in order; 0: not
    threads: int = 0  # XLA's threads on the CPU, part of the numbers; 0: one for each core
    track: TrackConfig = field(default_factory=TrackConfig)

    @property
    def devices(self) -> int:
        """That the run computes on, over all islands or stages."""
        return self.parallel.data * self.parallel.model * self.islands.count * self.pipeline.stages

    @property
    def devices_here(self) -> int:
        """Those of this process. Where islands have processes of their own, one mesh of it evaluates."""
        return self.devices if self.islands.on == "devices" else self.devices // self.islands.count

    def fingerprint(self) -> str:
        """SHA-256 of the resolved configuration, but for where it is tracked."""
        return sha256_json({name: value for name, value in to_dict(self).items() if name != "track"})


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration as JSON-ready values."""
    return _plain(asdict(config))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}


def from_dict(values: dict[str, Any], cls: type = RunConfig, where: str = "config") -> Any:
    """The inverse of `to_dict`; ConfigError names an unknown, missing or mistyped field by its dotted path.

    `where` is the path of the table itself; one that ends with a colon and a space names a file, and "" nothing.
    """
    if not isinstance(values, dict):
        name = where.removesuffix(": ") or "the configuration"
        raise ConfigError(f"{name} must be a table of settings, not {'null' if values is None else shown(values)}.")
    hints = get_type_hints(cls)
    known = {f.name for f in fields(cls)}
    for name in values:
        if name not in known:
            raise ConfigError(f"{_under(where, name)} is not a setting{closest(name, known)}.")
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        arguments[name] = _value(value, hints[name], _under(where, name))
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in needed if name not in arguments]:
        file = where if where.endswith(": ") else ""
        names = missing if file else [_under(where, name) for name in missing]
        raise ConfigError(
            f"{file}{' and '.join(names)} {'is' if len(missing) == 1 else 'are'} missing; set what is needed."
        )
    return cls(**arguments)


def _under(where: str, name: str) -> str:
    return f"{where}{name}" if where.endswith(": ") or not where else f"{where}.{name}"


_EXAMPLES: dict[type, tuple[str, str]] = {int: ("0", "16"), float: ("1.0", "1.0"), str: ('"name"', '"name"')}


def _example(inner: Any) -> str:
    """A list of such values, as TOML has it."""
    if getattr(inner, "__origin__", None) is tuple:
        return f"[[{', '.join(_EXAMPLES[kind][i] for i, kind in enumerate(inner.__args__))}]]"
    return f"[{_EXAMPLES[inner][1]}]"


def _value(value: Any, hint: Any, where: str) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        return from_dict(value, hint, where)
    if getattr(hint, "__origin__", None) is tuple:
        inner = hint.__args__[0]
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list such as {_example(inner)}, not {shown(value)}.")
        if getattr(inner, "__origin__", None) is tuple:
            rows = []
            for row in value:
                if not isinstance(row, list | tuple) or len(row) != len(inner.__args__):
                    raise ConfigError(
                        f"{where} must be a list of rows of {len(inner.__args__)} values such as {_example(inner)}, "
                        f"not {shown(row)}."
                    )
                rows.append(tuple(_value(v, h, where) for v, h in zip(row, inner.__args__, strict=True)))
            return tuple(rows)
        return tuple(_value(v, inner, where) for v in value)
    if getattr(hint, "__origin__", None) is Literal:
        if value not in hint.__args__:
            raise ConfigError(f"{where} is {shown(value)}; choose one of {', '.join(map(shown, hint.__args__))}.")
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > sys.float_info.max:
            raise ConfigError(f"{where} is a number of {len(str(abs(value)))} digits; it must be below 1.8e308.")
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)  # 1e8
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} is {shown(value)}; it must be {KINDS.get(hint, hint.__name__)}.")
    return value


def load(path: str | Path) -> RunConfig:
    """The RunConfig in a TOML or JSON file; ConfigError says what in it can't be used."""
    return from_dict(read_table(path), RunConfig, f"{Path(path).name}: ")


def check_seed(seed: int, name: str = "seed") -> None:
    """Raises ConfigError unless the seed is a whole number of 32 bits, which every generator here takes."""
    if not 0 <= seed < 2**32:
        raise ConfigError(f"{name} is {seed}; it must be a whole number from 0 to {2**32 - 1}.")


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`["model.d_model: 64 -> 96", ...]`: what changed between two configurations as dictionaries, in TOML's words."""
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            found.append(f"{prefix}{key}: {shown(a)} -> {shown(b)}")
    return found


def shown(value: Any) -> str:
    """A setting as a user wrote it or would write it in TOML: `[[0, 16]]`, `'cosine'`, `true`; `not set` for None."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {shown(v)}" for k, v in value.items()) + "}"
    return repr(value)


__all__ = [
    "AnnealConfig", "BatchConfig", "CheckpointConfig", "DataConfig", "EvalConfig", "GuardConfig", "IslandsConfig",
    "ModelConfig", "OptimizerConfig", "ParallelConfig", "PipelineConfig", "RunConfig", "ScheduleConfig", "TrackConfig",
    "check_seed", "differences", "from_dict", "load", "read_table", "replace", "shown", "to_dict",
]  # fmt: skip
