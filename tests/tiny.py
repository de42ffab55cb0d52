"""A token store and runs so small that a test can train them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from areca.config import BatchConfig, CheckpointConfig, DataConfig, EvalConfig, ModelConfig, RunConfig, ScheduleConfig
from areca.data.build import build_store
from areca.data.order import Order
from areca.data.store import TokenStore, bin_name

WORDS = ("areca", "palm", "betel", "nut", "grove", "shade", "river", "stone", "light", "market", "village", "road")


def text(seed: int, lines: int = 20) -> str:
    """Sentences from a linear congruential generator, so that no two documents are alike."""
    state, out = seed + 1, []
    for _ in range(lines):
        words = []
        for _ in range(9):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            words.append(WORDS[(state >> 33) % len(WORDS)])
        out.append(" ".join(words) + ".")
    return "\n".join(out) + "\n"


def build_tiny_store(root: Path, seed: int = 0, heldout_fraction: float = 0.2) -> Path:
    """A store of two corpora, about 20,000 tokens of a vocabulary of 300."""
    for name, count in (("big", 30), ("small", 10)):
        (root / name).mkdir(parents=True)
        for i in range(count):
            (root / name / f"{i:02}.txt").write_text(text(10_000 * seed + 1000 * len(name) + i))
    out = root / "store"
    build_store(
        out, [f"big={root / 'big'}", f"small={root / 'small'}"], vocab_size=300, heldout_fraction=heldout_fraction
    )
    return out


def tiny_config(store: Path | str, **changes) -> RunConfig:
    """Twelve steps of 4 x 16 tokens of a model of width 16 with 2 layers; `changes` replace fields."""
    fields = {
        "model": ModelConfig(vocab_size=300, d_model=16, n_layers=2, n_heads=2, d_ff=32),
        "data": DataConfig(store=str(store), context=16),
        "tokens": 12 * 4 * 16,
        "schedule": ScheduleConfig(warmup_tokens=2 * 4 * 16),
        "batch": BatchConfig(ramp=((0, 4),)),
        "evaluation": EvalConfig(max_tokens=512, batch=4),
        "checkpoint": CheckpointConfig(every_steps=4),
    }
    return RunConfig(**(fields | changes))


def poisoned(store: Path, out: Path, data: DataConfig, examples: range) -> Path:
    """A copy of a store with noise in the training windows that are these examples of `data`'s order."""
    shutil.copytree(store, out)
    opened, rng = TokenStore.open(out), np.random.default_rng(0)
    windows = Order(opened, data.context, data.seed, data.weights).windows(examples.start, examples.stop)
    for corpus, offset in windows:
        file = out / bin_name(opened.corpora[corpus].name, "train")
        tokens = np.memmap(file, dtype=opened.dtype, mode="r+")
        tokens[offset + 1 : offset + data.context] = rng.integers(0, 300, data.context - 1)
        tokens.flush()
    return out


def saved_state(run: Path, config: RunConfig) -> Any:
    """The whole state (step, parameters, optimizer) of a run's latest checkpoint."""
    import jax

    from areca.train.checkpoint import Checkpoints
    from areca.train.step import init_state

    example = jax.eval_shape(lambda: init_state(config.model, config.optimizer, config.seed))
    with Checkpoints(run / "checkpoints", writable=False) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        return checkpoints.restore(latest, example)[0]
