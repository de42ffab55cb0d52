"""PaLM's six deviations from GPT-2's decoder, each switched back: what it costs in time and brings in loss.

Loss: small decoders of equal N (F makes up for what a switch adds or removes), each at the best of a few peak rates,
then further seeds at that rate; held-out loss against PaLM's block, paired by seed. Time: training steps of all
variants in turns in one process, at a ladder's size and at a wider one; medians of ratios to PaLM's block. Decoding:
multi-query against multi-head in turns, with the bytes of the cache of keys and values.

    python benchmarks/deviations.py loss --out DIR --store STORE
    python benchmarks/deviations.py time
    python benchmarks/deviations.py decode
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from areca.config import ModelConfig, OptimizerConfig
from areca.data.store import TokenStore
from areca.model.counts import count_params, exact_flops_per_token
from small_runs import job_of, losses_of

# What the paper says of each (Chowdhery et al. 2022, section 2).
CLAIMS = {
    "palm": "",
    "serial block": "parallel: 15% faster at scale; a little worse at 8B, no worse at 62B",
    "multi-head": "multi-query: no quality lost, much cheaper decoding",
    "gelu": "SwiGLU: better quality at equal compute",
    "learned positions": "RoPE: better on long sequences",
    "separate embeddings": "shared: done before, nothing claimed",
    "biases": "none: more stable at large sizes",
}
STEPS, BATCH, CONTEXT = 800, 16, 64
RATES = (0.035, 0.07, 0.14)
DECODED = (512, 4, 64, 1024)  # D, layers, K, positions of the cache
TIMED = {"ladder size": (128, 3, 16, 16, 64), "wide": (512, 2, 64, 8, 256)}  # D, layers, K, B, T


def variants(vocabulary: int, width: int, layers: int, head_dim: int, context: int) -> dict[str, ModelConfig]:
    """PaLM's decoder and six others with, as nearly as F allows, its number of parameters without embeddings."""
    palm = ModelConfig(vocabulary, width, layers, width // head_dim, head_dim=head_dim).resolved()
    switches: dict[str, dict] = {
        "palm": {},
        "serial block": {"block": "serial"},
        "multi-head": {"n_kv_heads": palm.n_heads},
        "gelu": {"mlp": "gelu"},
        "learned positions": {"positions": "learned", "n_positions": context},
        "separate embeddings": {"tied": False},
        "biases": {"biases": True},
    }
    return {name: _equal(dataclasses.replace(palm, **switch), palm) for name, switch in switches.items()}


def _equal(model: ModelConfig, like: ModelConfig) -> ModelConfig:
    """`model` with the F that brings its N nearest that of `like`."""
    wanted = count_params(like).non_embedding
    each = count_params(dataclasses.replace(model, d_ff=2)).mlp // 2
    d_ff = model.d_ff + round((wanted - count_params(model).non_embedding) / each)
    return dataclasses.replace(model, d_ff=d_ff).resolved()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("loss", "time", "decode"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--store", type=Path, help="a token store, such as a quickstart's")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if options.part == "time":
        for size in TIMED:
            show_times(size, options)
    elif options.part == "decode":
        show_decoding(options)
    else:
        show_losses(options)


def show_losses(options: argparse.Namespace) -> None:
    models = variants(TokenStore.open(options.store).vocab_size, 128, 3, 16, CONTEXT)

    def run(name: str, rate: float, seed: int):
        return job_of(
            f"{name.replace(' ', '-')}-lr{rate:g}-s{seed}", models[name], options.out, options.store,
            rate=rate, steps=STEPS, batch=BATCH, context=CONTEXT, seed=seed,
        )  # fmt: skip

    first = {(name, rate): run(name, rate, 0) for name in models for rate in RATES}
    losses = losses_of(list(first.values()))
    best = {name: min(RATES, key=lambda r: losses[first[name, r].name]) for name in models}
    jobs = {(name, seed): run(name, best[name], seed) for name in models for seed in range(options.seeds)}
    losses |= losses_of(list(jobs.values()))
    rows = []
    for name, model in models.items():
        mine = [losses[jobs[name, seed].name] for seed in range(options.seeds)]
        apart = [a / losses[jobs["palm", seed].name] - 1 for seed, a in enumerate(mine)]
        error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        row = {"variant": name, "n_params": count_params(model).non_embedding, "rate": best[name], "losses": mine,
               "against_palm": statistics.mean(apart), "standard_error": error,
               "flops_per_token": exact_flops_per_token(model, CONTEXT)}  # fmt: skip
        rows.append(row)
        each = ", ".join(f"{x:.4f}" for x in mine)
        print(
            f"{name:20} N {row['n_params']:,} F {model.d_ff} rate {best[name]:g} loss {statistics.mean(mine):.4f} "
            f"({each}) {row['against_palm']:+.2%} +- {error:.2%}  {CLAIMS[name]}"
        )
    (options.out / "deviations.json").write_text(json.dumps(rows, indent=1) + "\n")


def show_times(size: str, options: argparse.Namespace) -> None:
    from areca import runtime

    runtime.prepare(options.threads)
    import jax
    import numpy as np

    from areca.train import step

    width, layers, head_dim, batch, context = TIMED[size]
    optimizer = OptimizerConfig()
    programs = {}
    tokens = np.random.default_rng(0).integers(0, 4096, (batch, context + 1)).astype(np.int32)
    for name, model in variants(4096, width, layers, head_dim, context).items():
        compiled = step.compile_step(model, optimizer, step.abstract_state(model, optimizer), batch, context)
        programs[name] = [compiled, step.first_state(model, optimizer, 0)]
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(options.rounds + 1):
        for name in programs if turn % 2 else reversed(programs):
            compiled, state = programs[name]
            state, _ = compiled(state, tokens, np.float32(0.01))
            jax.block_until_ready(state)
            started = time.perf_counter()
            for _ in range(4):
                state, _ = compiled(state, tokens, np.float32(0.01))
            jax.block_until_ready(state)
            programs[name][1] = state
            if turn:
                seconds[name].append((time.perf_counter() - started) / 4)
    print(f"{size}: D {width}, {layers} layers, {batch} x {context} tokens, {options.threads} threads")
    for name, mine in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(mine, seconds["palm"], strict=True))
        print(f"  {name:20} {1000 * statistics.median(mine):7.1f} ms a step, {ratio:.3f} of PaLM's block")


def show_decoding(options: argparse.Namespace) -> None:
    from areca import runtime

    runtime.prepare(options.threads)
    import jax
    import numpy as np

    from areca.model import decoder
    from areca.model.decode import cache_bytes
    from areca.model.lanes import Batch, Entry
    from areca.model.prepared import prepare
    from areca.model.sampling import Sampling

    width, layers, head_dim, positions = DECODED
    both = variants(4096, width, layers, head_dim, positions)
    models = {name: both[name] for name in ("palm", "multi-head")}
    steps, read = 4, positions - 4 * (options.rounds + 2)
    text = np.random.default_rng(0).integers(0, 4096, read).tolist()
    print(f"decoding: D {width}, {layers} layers, {width // head_dim} heads, texts of {read} to {positions} tokens, "
          f"{options.threads} threads")  # fmt: skip
    for lanes in (1, 16):
        batches = {}
        for name, model in models.items():
            params = jax.jit(lambda model=model: decoder.init(model, jax.random.key(0)))()
            batch = Batch(model, prepare(model, params, 4096), lanes=lanes, context=positions)
            batch.join([Entry(text, positions - read, Sampling(0.0))] * lanes)
            batches[name] = batch
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for turn in range(options.rounds + 1):
            for name in models if turn % 2 else reversed(models):
                started = time.perf_counter()
                batches[name].advance(steps)
                if turn:
                    seconds[name].append((time.perf_counter() - started) / steps)
        for name, model in models.items():
            ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["palm"], strict=True))
            size = cache_bytes(model, lanes, positions) / 1e6
            speed = lanes / statistics.median(seconds[name])
            label = f"batch {lanes}, {'multi-query' if name == 'palm' else name}"
            print(f"  {label:22} cache {size:7.2f} MB, {speed:6.0f} tokens/s, {ratio:.3f} of multi-query's time")


if __name__ == "__main__":
    main()
