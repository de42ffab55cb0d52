"""What cutting the gradient into segments costs: processor time beside the one program of train/step.py.

    NPROC=1 taskset -c 0 python benchmarks/segments.py --d-model 64

Both recompute each layer (remat "block"), in this process, turn about; the ratio is of medians of processor time. Above
1 the segments cost more. "assembled" also joins the parts to one gradient, which a step's last program does.
"""

import argparse
import statistics
import time
from functools import partial

from areca import runtime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("d-model", 64),
        ("layers", 8),
        ("vocab", 4096),
        ("batch", 8),
        ("context", 256),
        ("rounds", 15),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    runtime.prepare()

    import jax
    import numpy as np

    from areca.config import ModelConfig
    from areca.model import decoder
    from areca.model.layout import Layout
    from areca.train.islands.segments import Cut, assemble, pieces
    from areca.train.step import gradients

    model = ModelConfig(asked.vocab, asked.d_model, asked.layers, n_heads=max(1, asked.d_model // 32))
    layout = Layout(remat="block")
    params = jax.jit(lambda: decoder.init(model, jax.random.key(0)))()
    tokens = np.random.default_rng(0).integers(0, asked.vocab, (asked.batch, asked.context + 1)).astype(np.int32)
    whole = jax.jit(lambda p, t: gradients(model, 1e-4, p, t, layout)).lower(params, tokens).compile()
    join = jax.jit(partial(assemble, model))
    runs = {"one program": lambda: whole(params, tokens)}

    def in_segments(segments: int):
        made = pieces(Cut(model, segments, layout), params, asked.batch, asked.context)
        compiled = {
            p.name: jax.jit(p.function).lower(*p.inputs).compile()
            for p in (made.forward, made.head, *(p for p, _ in made.segments), made.embedding)
        }
        places = [np.int32(first) for _, first in made.segments]

        def parts():
            x, last = compiled["forward"](params, tokens)
            head, _, dx = compiled["head"](params, last, tokens)
            layers = []
            for (piece, _), first in zip(made.segments, places, strict=True):
                grads, dx = compiled[piece.name](params, x, dx, first)
                layers.append(grads)
            return head, layers[::-1], compiled["embedding"](params, tokens, dx)

        return parts, lambda: join(*parts())

    for segments in sorted({s for s in (1, 2, 4, 8, asked.layers) if s <= asked.layers}):
        runs[f"{segments} segments"], runs[f"{segments} segments, assembled"] = in_segments(segments)
    seconds = {name: [] for name in runs}
    for i in range(asked.rounds + 2):
        for name, run in runs.items():
            started = time.process_time()
            jax.block_until_ready(run())
            if i >= 2:
                seconds[name].append(time.process_time() - started)
    base = statistics.median(seconds["one program"])
    for name, each in seconds.items():
        ratios = sorted(a / b for a, b in zip(each, seconds["one program"], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        middle = statistics.median(each)
        print(f"{name:24} {1e3 * middle:8.1f} ms  {middle / base:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
