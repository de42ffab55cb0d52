"""Pass two of a build: the documents of a spool as tokens, by several processes, in order.

A spool is cut into chunks of whole documents. Worker processes (`python -m areca.data.encode`) read the chunks
themselves, encode them with one thread each and send back the tokens, which this process writes in order. So the files
don't depend on the number of processes, and memory holds a few chunks of each.
"""

import contextlib
import hashlib
import os
import queue
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from areca.data import store
from areca.data.longtexts import is_long
from areca.data.spool import documents
from areca.data.tokenizer import Tokenizer, load_tokenizer
from areca.errors import DataError, WorkerLost

SPLITS: tuple[store.Split, ...] = ("train", "heldout")
COUNTS = tuple(f"{split}_{what}" for split in SPLITS for what in ("tokens", "documents"))
_BATCH_CHARACTERS = 500_000  # encoded at once: the library holds a hundred bytes and more for each token
_AHEAD = 2  # chunks asked of a worker before its first answer is read
_HEAD = struct.Struct(f"<{len(COUNTS)}Q")


class Job(NamedTuple):
    """A spool, and how its documents become tokens."""

    spool: Path
    cuts: Sequence[int]  # offsets where its chunks end
    threshold: int  # documents with a hash below it are held out
    tokenizer: Path
    dtype: np.dtype


class Encoded(NamedTuple):
    """The tokens of a chunk's documents, each ended by `[eod]`, and how many: `COUNTS`."""

    counts: tuple[int, ...]
    data: tuple[bytes, bytes]  # of each of SPLITS


def encoded(job: Job, tokenizer: Tokenizer, first: int, processes: int) -> Iterator[Encoded]:
    """The chunks of a job from `first` on, in order; with one process here, on all cores."""
    if processes <= 1 or len(job.cuts) - first < 2:
        with job.spool.open("rb") as file:
            for chunk in range(first, len(job.cuts)):
                yield _encode(file, *_bounds(job, chunk), job.threshold, tokenizer, job.dtype, threads=True)
        return
    with contextlib.ExitStack() as stack:
        crew = [_Worker(job) for _ in range(min(processes, len(job.cuts) - first))]
        for worker in crew:
            stack.callback(worker.stop)
        waiting: deque[_Worker] = deque()
        chunks = iter(range(first, len(job.cuts)))
        for _ in range(_AHEAD):
            for worker in crew:
                if (chunk := next(chunks, None)) is not None:
                    worker.ask(*_bounds(job, chunk))
                    waiting.append(worker)
        while waiting:
            worker = waiting.popleft()
            result = worker.answer()
            if (chunk := next(chunks, None)) is not None:
                worker.ask(*_bounds(job, chunk))
                waiting.append(worker)
            yield result


def _bounds(job: Job, chunk: int) -> tuple[int, int]:
    return (job.cuts[chunk - 1] if chunk else 0), job.cuts[chunk]


def _encode(
    spool: BinaryIO, start: int, end: int, threshold: int, tokenizer: Tokenizer, dtype: np.dtype, *, threads: bool
) -> Encoded:
    """Encodes the documents of one chunk; `threads`: in batches large enough for all cores."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    counts = [0] * len(COUNTS)
    batch: list[tuple[int, str]] = []
    size, most = 0, _BATCH_CHARACTERS * (8 if threads else 1)

    def put(side: int, ids: list[int], documents: int) -> None:
        parts[side].append(np.array(ids, dtype).tobytes())
        counts[2 * side] += len(ids)
        counts[2 * side + 1] += documents

    def flush() -> None:
        for (side, _), ids in zip(batch, tokenizer.encode_batch([text for _, text in batch]), strict=True):
            ids.append(tokenizer.eod_id)
            put(side, ids, 1)
        batch.clear()

    for key, text in documents(spool, start, end):
        side = int(key < threshold)
        if is_long(text):
            flush()
            size = 0
            for ids in tokenizer.encode_pieces(text):
                put(side, ids, 0)
            put(side, [tokenizer.eod_id], 1)
            continue
        batch.append((side, text))
        size += len(text)
        if size > most:
            flush()
            size = 0
    flush()
    return Encoded(tuple(counts), (b"".join(parts[0]), b"".join(parts[1])))


class _Worker:
    """A worker process, which answers what it is asked in order."""

    def __init__(self, job: Job) -> None:
        words = [job.tokenizer, job.spool, job.threshold, job.dtype.str]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "areca.data.encode", *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches this process alone
            env={
                **os.environ,
                "TOKENIZERS_PARALLELISM": "false",
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )

    def ask(self, start: int, end: int) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says that it is gone
            self._process.stdin.write(f"{start} {end}\n".encode())
            self._process.stdin.flush()

    def answer(self) -> Encoded:
        assert self._process.stdout is not None
        counts = _HEAD.unpack(self._read(_HEAD.size))
        sizes = [struct.unpack("<Q", self._read(8))[0] for _ in SPLITS]
        return Encoded(counts, (self._read(sizes[0]), self._read(sizes[1])))

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            code = self._process.wait()
            why = f"killed by signal {-code}; is there enough memory?" if code < 0 else f"exit code {code}"
            raise WorkerLost(
                f"a process that tokenizes ended unexpectedly ({why}); the same command goes on where it was, and "
                "--processes 1 does without."
            )
        return data

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


class Output:
    """A .bin file that is written from its first `size` bytes on; its digest is of all of it."""

    def __init__(self, path: Path, size: int) -> None:
        self.digest = hashlib.sha256()
        self.file = path.open("r+b" if size else "wb")
        while left := size - self.file.tell():
            block = self.file.read(min(left, 1 << 24))
            if not block:
                self.file.close()
                raise DataError(f"{path} is shorter than it was; remove {path.parent} and build the store again.")
            self.digest.update(block)
        if size:
            self.file.truncate()

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.digest.update(data)

    def sync(self) -> None:
        """What was written survives a power cut."""
        self.file.flush()
        os.fsync(self.file.fileno())


def write_tokens(
    directory: Path,
    corpus: str,
    job: Job,
    tokenizer: Tokenizer,
    counts: dict[str, int],
    first: int,
    processes: int,
    record: Callable[[int, Callable[[], None]], None],
) -> dict[str, str]:
    """Writes the .bin files of a corpus from chunk `first` on; returns the SHA-256 of each.

    `counts` are the `COUNTS` of the chunks before, and are updated. After each chunk `record` hears how many are
    written, and of a function that makes them durable.
    """
    outputs: list[Output] = []
    with contextlib.ExitStack() as stack:
        for split in SPLITS:
            outputs.append(
                Output(directory / store.bin_name(corpus, split), counts[f"{split}_tokens"] * job.dtype.itemsize)
            )
            stack.callback(outputs[-1].file.close)

        def sync() -> None:
            for output in outputs:
                output.sync()

        for done, chunk in enumerate(encoded(job, tokenizer, first, processes), first + 1):
            for output, data in zip(outputs, chunk.data, strict=True):
                output.write(data)
            for name, count in zip(COUNTS, chunk.counts, strict=True):
                counts[name] += count
            record(done, sync)
        sync()
    return {
        store.bin_name(corpus, split): output.digest.hexdigest() for split, output in zip(SPLITS, outputs, strict=True)
    }


def main(words: Sequence[str]) -> None:
    """The worker: tokenizer, spool, threshold and dtype as words; "START END" lines in, tokens out."""
    tokenizer, threshold, dtype = load_tokenizer(words[0]), int(words[2]), np.dtype(words[3])
    answers: queue.Queue[Encoded | None] = queue.Queue(1)

    def send() -> None:  # while the next chunk is encoded
        while (chunk := answers.get()) is not None:
            sizes = struct.pack(f"<{len(SPLITS)}Q", *map(len, chunk.data))
            try:
                sys.stdout.buffer.write(b"".join((_HEAD.pack(*chunk.counts), sizes, *chunk.data)))
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                os._exit(1)  # nobody listens any more

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with open(words[1], "rb") as spool:
            for line in sys.stdin.buffer:
                start, end = map(int, line.split())
                answers.put(_encode(spool, start, end, threshold, tokenizer, dtype, threads=False))
    finally:
        answers.put(None)
        sender.join()


if __name__ == "__main__":
    main(sys.argv[1:])
