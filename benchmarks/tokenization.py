"""Text to tokens: our path beside the libraries alone, on the same text in the same rounds, as ratios.

    python benchmarks/tokenization.py [--text FILE ...] [--megabytes 32] [--rounds 5] [--vocab-size 8192]

For each kind of tokenizer, in each round, in an order that is drawn anew:

    ours         pass two of `areca corpus build`: a spool to the .bin files of a store, with digests and records
    one process  the same in this process alone, on all cores by threads
    tokenizers   `encode_batch_fast` of the same tokenizer.json on documents in memory, tokens dropped; all cores
    + ids        the same with its lists of ids taken out, which is the least that anyone has to do
    sentencepiece  for its kinds: `encode` on documents in memory with a thread for each core

Prints MB/s (medians with quartiles) and, as medians of the ratios within a round, ours over each. Text that is not
given is the Python standard library and what is installed beside it.
"""

import argparse
import io
import random
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tokenizers

from areca.data import sentencepieces
from areca.data.documents import Document
from areca.data.encode import COUNTS, Job, write_tokens
from areca.data.spool import Spool
from areca.data.store import token_dtype
from areca.data.tokenizer import KINDS, Tokenizer, train_tokenizer
from areca.runtime import available_cores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--megabytes", type=float, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--kinds", nargs="*", default=KINDS)
    args = parser.parse_args()
    texts = gather(args.text, args.megabytes * 1e6)
    size = sum(len(t.encode()) for t in texts) / 1e6
    print(f"{size:.1f} MB, {len(texts):,} documents, {available_cores()} cores, vocabulary {args.vocab_size:,}")
    sample = texts[:: max(1, int(size / 8))]
    for kind in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            compare(kind, texts, sample, size, args, Path(folder))


def gather(files: list[str], most: float) -> list[str]:
    """Documents: the files given, in pieces of at most 100 kB, or Python sources."""
    places = [Path(f) for f in files]
    if not places:
        paths = sysconfig.get_paths()
        places = [p for root in (paths["stdlib"], paths["purelib"]) for p in sorted(Path(root).rglob("*.py"))]
    texts, size, seen = [], 0, set()
    for place in places:
        text = place.read_text("utf-8", "replace")
        for start in range(0, len(text), 100_000):
            piece = text[start : start + 100_000]
            if size < most and piece.strip() and piece not in seen:
                seen.add(piece)
                texts.append(piece)
                size += len(piece)
    return texts


def compare(
    kind: str, texts: list[str], sample: list[str], size: float, args: argparse.Namespace, folder: Path
) -> None:
    began = time.perf_counter()
    model = b""
    if kind == "byte-bpe":
        tokenizer = train_tokenizer(sample, args.vocab_size)
    else:
        model = sentencepieces.train(sample, args.vocab_size, kind)
        tokenizer = sentencepieces.from_model(model)
    print(f"\n{kind}: {tokenizer.vocab_size:,} tokens, trained in {time.perf_counter() - began:.1f} s")
    runs = ways(tokenizer, model, texts, folder)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    for turn in range(args.rounds + 1):
        random.Random(turn).shuffle(order)
        for name in order:
            start = time.perf_counter()
            runs[name]()
            if turn:  # the first warms up
                seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        low, middle, high = (
            statistics.quantiles([size / t for t in times], n=4) if len(times) > 1 else [size / times[0]] * 3
        )
        ratios = [theirs / ours for theirs, ours in zip(times, seconds["ours"], strict=True)]
        ratio = (
            ""
            if name == "ours"
            else f"   ours is {statistics.median(ratios):.2f} of it ({min(ratios):.2f} to {max(ratios):.2f})"
        )
        print(f"  {name:<14} {middle:6.2f} MB/s ({low:.2f} to {high:.2f}){ratio}", flush=True)


def ways(tokenizer: Tokenizer, model: bytes, texts: list[str], folder: Path) -> dict[str, Callable[[], object]]:
    tokenizer.save(folder / "tokenizer.json")
    spool = Spool(folder / "text.spool")
    for text in texts:
        spool.add(Document(text, "text", ""), "kept")
    spool.close()
    job = Job(spool.path, spool.cuts, 2**60, folder / "tokenizer.json", token_dtype(tokenizer.vocab_size))
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.encode_special_tokens = True

    def ours(processes: int) -> None:
        write_tokens(folder, "text", job, tokenizer, dict.fromkeys(COUNTS, 0), 0, processes, lambda done, sync: None)

    def theirs(ids: bool) -> int:
        total = 0
        for start in range(0, len(texts), 512):
            encodings = library.encode_batch_fast(texts[start : start + 512], add_special_tokens=False)
            total += sum(len(e.ids) for e in encodings) if ids else len(encodings)
        return total

    found: dict[str, Callable[[], object]] = {
        "ours": lambda: ours(available_cores()),
        "one process": lambda: ours(1),
        "tokenizers": lambda: theirs(False),
        "+ ids": lambda: theirs(True),
    }
    if model:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        found["sentencepiece"] = lambda: processor.encode(texts, num_threads=available_cores())
    return found


if __name__ == "__main__":
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)
    main()
