"""Tokens per second beside transformers.generate in one run: the same 15.8M weights, prompts, threads; float32.

Each side has a process of its own; they take turns while the other sleeps, and both have Areca's setting of the
allocator, which helps both. A generation is timed whole, reading the prompts included. Both take the likeliest token,
and the tokens of both sides must be the same, or nothing is printed; with --top-k both draw, each its own.
transformers runs CohereForCausalLM, which is PaLM's block, with its own cache. On a busy machine two threads of PyTorch
wait for each other, so look there at the processor time of one thread.

    make bench-generate ARGS='--batches 1 16 --rounds 5'
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers.problem import PROBLEMS, Problem, batch
from peers.side import Side

SIDES = ("areca", "transformers")
SETTLE_SECONDS = 0.3  # for the thread pool of the side that has just run to stop spinning


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="drawn for each prompt")
    parser.add_argument("--top-k", type=int, default=0, help="draw from so many at temperature 0.8; 0: the likeliest")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write all times here")
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    workers = {side: Worker(side, options) for side in SIDES}
    seconds: dict[str, dict[int, list[float]]] = {side: {n: [] for n in options.batches} for side in SIDES}
    processor: dict[str, dict[int, list[float]]] = {side: {n: [] for n in options.batches} for side in SIDES}
    try:
        for n in options.batches:
            drawn = {side: worker.ask(n)["tokens"] for side, worker in workers.items()}  # compiles
            if not options.top_k and drawn["areca"] != drawn["transformers"]:
                sys.exit(f"the sides do not draw the same tokens at batch {n}")
        for turn in range(options.rounds):
            for n in options.batches:
                for side in SIDES if turn % 2 else reversed(SIDES):
                    time.sleep(SETTLE_SECONDS)
                    answer = workers[side].ask(n)
                    seconds[side][n].append(answer["seconds"])
                    processor[side][n].append(answer["processor"])
    finally:
        for worker in workers.values():
            worker.close()
    how = f"drawn from {options.top_k}" if options.top_k else "the likeliest"
    print(f"15.8M weights, prompts of {options.prompt} tokens, {options.tokens} new ones, {how}, "
          f"{options.threads} threads, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    for n in options.batches:
        rate = {side: [n * options.tokens / s for s in seconds[side][n]] for side in SIDES}
        ratios = [a / b for a, b in zip(rate["areca"], rate["transformers"], strict=True)]
        ours, theirs = (statistics.median(rate[side]) for side in SIDES)
        used = [min(processor[side][n]) for side in SIDES]
        print(f"  batch {n:<3} areca {ours:6.0f} tokens/s, transformers {theirs:6.0f}: {statistics.median(ratios):.2f} "
              f"times as fast ({min(ratios):.2f} to {max(ratios):.2f}); least processor time {used[0]:.2f} and "
              f"{used[1]:.2f} s, {used[1] / used[0]:.2f} times")  # fmt: skip
    if options.json:
        options.json.write_text(
            json.dumps({"seconds": seconds, **{k: getattr(options, k) for k in ("prompt", "tokens")}}) + "\n"
        )


class Worker(Side):
    """One side in its own process; `ask(n)` has it generate n texts once."""

    def __init__(self, side: str, options: argparse.Namespace) -> None:
        threads = str(options.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        words = [sys.executable, __file__, "--worker", side, "--threads", threads]
        words += ["--prompt", str(options.prompt), "--tokens", str(options.tokens), "--top-k", str(options.top_k)]
        super().__init__(words, environment)


def work(options: argparse.Namespace) -> None:
    """The loop of a worker: a number of texts in, the seconds and the tokens out."""
    from areca import runtime

    runtime.keep_memory_mapped()
    p = PROBLEMS["block"]
    make = areca_side if options.worker == "areca" else transformers_side
    generate = make(p, options)
    for line in sys.stdin:
        prompts = batch(p, 0).reshape(-1)[: int(line) * options.prompt].reshape(int(line), options.prompt).tolist()
        started, used = time.perf_counter(), time.process_time()
        tokens = generate(prompts)
        took = {"seconds": time.perf_counter() - started, "processor": time.process_time() - used}
        print(json.dumps({**took, "tokens": tokens}), flush=True)


def areca_side(p: Problem, options: argparse.Namespace):
    from areca import runtime

    runtime.prepare(options.threads)
    from areca.model.lanes import Batch, Entry, run
    from areca.model.prepared import prepare
    from areca.model.sampling import Sampling
    from peers.areca_side import model_and_parameters

    config, params = model_and_parameters(p)
    sampling = Sampling(0.8, options.top_k) if options.top_k else Sampling(0.0)
    prepared = prepare(config, params, p.vocab_size)

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        lanes = Batch(config, prepared, lanes=len(prompts), context=p.context, length=options.prompt + options.tokens)
        texts: list[list[int]] = [[] for _ in prompts]

        def take(i: int, piece) -> bool:
            texts[i] += piece.tokens
            return True

        run(lanes, [Entry(prompt, options.tokens, sampling) for prompt in prompts], take)
        return texts

    return generate


def transformers_side(p: Problem, options: argparse.Namespace):
    import torch

    from peers.torch_side import Cohere

    torch.set_num_threads(options.threads)
    model = Cohere(p).model.eval()
    drawn = {"do_sample": True, "temperature": 0.8, "top_k": options.top_k}
    choice = drawn if options.top_k else {"do_sample": False}

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), **choice, use_cache=True, pad_token_id=0,
                min_new_tokens=options.tokens, max_new_tokens=options.tokens, eos_token_id=None,
            )  # fmt: skip
        return out[:, options.prompt :].tolist()

    return generate


if __name__ == "__main__":
    main()
