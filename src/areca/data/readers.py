"""Documents from a user's files: text, JSON lines, Parquet, compressed or not, or a directory tree of them.

Everything streams: memory holds one document (of a text file that is split, one piece) and one batch of rows. Text is
never changed: no normalisation of Unicode or of line ends.
"""

import codecs
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from areca.data.documents import Document, escape_surrogates, from_bytes, is_valid
from areca.data.sources import Source, files_of
from areca.errors import ConfigError, DataError, closest
from areca.files import not_json
from areca.remote.sources import RemoteFile

File = Path | RemoteFile
InvalidUtf8 = Literal["refuse", "keep"]
_SNIFF = 8192  # a NUL byte in the first so many bytes marks a binary file, as in git
_BLOCK, _LARGEST_BLOCK = 1 << 20, 1 << 26
_ROWS_BYTES = 1 << 24  # of Parquet's rows at once, about, before the other columns are left out
_COMPRESSED = 1 << 14  # bytes that are decompressed at once: they may be a thousand times as many


@dataclass
class ReadOptions:
    """How files become documents, and a count of what was left out."""

    text_column: str = "text"
    columns: Mapping[str, str] = field(default_factory=dict)  # corpora whose text is in a column of their own
    invalid_utf8: InvalidUtf8 = "refuse"
    split_bytes: int | None = None  # None: split single text files only, into pieces of at most SPLIT_BYTES; 0: never
    skipped: Counter = field(default_factory=Counter)  # binary files of a tree


SPLIT_BYTES = 4096


def read_source(source: Source, options: ReadOptions) -> Iterator[Document]:
    """The documents of a user's source, in sorted order of files. DataError names a file that can't be read as text."""
    assert source.path is not None
    tree = source.path.is_dir()
    column = options.columns.get(source.name, options.text_column)
    split = options.split_bytes if options.split_bytes is not None else (0 if tree else SPLIT_BYTES)
    for path in files_of(source.path):
        kind = _kind(path)
        if kind == "jsonl":
            rows = _jsonl(path, column, options)
        elif kind == "parquet":
            rows = _parquet(path, column, options)
        elif _is_binary(path):
            if not tree:
                raise DataError(f"{path} is a binary file (it holds NUL bytes); give text, .jsonl or .parquet.")
            options.skipped["binary"] += 1
            continue
        else:
            rows = _text(path, options, split)
        for where, text in rows:
            yield Document(text, source.name, where)


def _kind(path: File) -> str:
    suffixes = [s.lower() for s in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst"):
        suffixes.pop()
    last = suffixes[-1] if suffixes else ""
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(last, "text")


def _open(path: File) -> BinaryIO:
    """The bytes of a file, decompressed by its suffix."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path.open("rb") if isinstance(path, RemoteFile) else path, "rb")  # type: ignore[return-value]
    if path.suffix.lower() == ".zst":
        return io.BufferedReader(Zst(path.open("rb")), _BLOCK)  # type: ignore[arg-type]
    return path.open("rb")


class Zst(io.RawIOBase):
    """What the frames of a .zst file hold, one after another; EOFError where the last one is cut off.

    (The package's own reader takes the end of the file for the end of the text.)
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: Any = None  # that has begun and not ended
        self._given, self._held, self._at = b"", b"", 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """As of io.RawIOBase."""
        import zstandard

        while self._at == len(self._held):
            self._given = self._given or self._file.read(_COMPRESSED)
            if not self._given:
                if self._frame is not None:
                    raise EOFError("the file ends within a frame")
                return 0
            self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._held, self._at = self._frame.decompress(self._given), 0
            self._given = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._held) - self._at)
        buffer[:count] = memoryview(self._held)[self._at : self._at + count]
        self._at += count
        return count

    def close(self) -> None:
        """Closes the file too."""
        self._file.close()
        super().close()


def _decompression_errors() -> tuple[type[Exception], ...]:
    import zlib

    import zstandard

    return (gzip.BadGzipFile, zlib.error, EOFError, zstandard.ZstdError)


def _is_binary(path: File) -> bool:
    try:
        with _open(path) as f:
            return b"\0" in f.read(_SNIFF)
    except _decompression_errors() as error:
        raise DataError(f"{path} can't be decompressed ({error}); is it damaged?") from None


def _text(path: File, options: ReadOptions, split: int) -> Iterator[tuple[str, str]]:
    """A text file as one document, or, longer than `split` bytes, as pieces that joined are the file exactly."""
    try:
        with _open(path) as f:
            if not split:
                yield str(path), _decode(f.read(), path, 0, options)
                return
            for offset, piece in _pieces(f, split):
                yield f"{path}@{offset}", _decode(piece, path, offset, options)
    except _decompression_errors() as error:
        raise DataError(f"{path} can't be decompressed ({error}); is it damaged?") from None


def _pieces(f: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Cuts a stream into pieces of at most `size` bytes: after the last blank line, or line, or word, or character."""
    offset, buffer, ended = 0, b"", False
    while True:
        while not ended and len(buffer) <= size:
            block = f.read(min(max(_BLOCK, size), _LARGEST_BLOCK))
            ended = not block
            buffer += block
        start = 0
        while len(buffer) - start > size or (ended and start < len(buffer)):
            end = _cut(buffer, start, size)
            yield offset + start, buffer[start:end]
            start = end
        offset += start
        buffer = buffer[start:]
        if ended:
            return


def _cut(buffer: bytes, start: int, size: int) -> int:
    """Where the piece from `start` ends."""
    if len(buffer) - start <= size:
        return len(buffer)
    stop = start + size
    for mark in (b"\n\n", b"\n\r\n", b"\n", b" "):
        at = buffer.rfind(mark, start, stop)
        if at >= 0:
            return at + len(mark)
    for end in range(stop, max(stop - 4, start), -1):  # not inside a character
        if buffer[end] & 0xC0 != 0x80:
            return end
    return stop


def _decode(data: bytes, path: File, offset: int, options: ReadOptions) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if options.invalid_utf8 == "keep":
            return from_bytes(data)
        raise DataError(
            f"{path} is not valid UTF-8 at byte {offset + error.start}; convert it, or keep such bytes as they are "
            "with --invalid-utf8 keep."
        ) from None


def _jsonl(path: File, column: str, options: ReadOptions) -> Iterator[tuple[str, str]]:
    try:
        with _open(path) as f:
            offset = 0
            for number, line in enumerate(f, 1):
                if line.strip():
                    mark = codecs.BOM_UTF8 if number == 1 else b""
                    decoded = _decode(line.removeprefix(mark), path, offset, options)
                    text = _row_text(_json(decoded, path, number), column, path, number, options)
                    yield f"{path}:{number}", escape_surrogates(text, escaped=not is_valid(decoded))
                offset += len(line)
    except _decompression_errors() as error:
        raise DataError(f"{path} can't be decompressed ({error}); is it damaged?") from None


def _json(line: str, path: File, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} line {number} is not valid JSON ({not_json(error)}).") from None


def _row_text(row: Any, column: str, path: File, number: int, options: ReadOptions) -> str:
    if not isinstance(row, dict):
        raise DataError(f"{path} line {number} is not a JSON object with a text in {column!r}.")
    if column not in row:
        raise DataError(_no_column(f"{path} line {number}", column, list(row)))
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(
            f"{path} line {number}: {column!r} is {type(text).__name__}, not text; name another --text-column."
        )
    if not is_valid(text) and options.invalid_utf8 == "refuse":
        raise DataError(
            f"{path} line {number}: {column!r} holds a lone surrogate, which is not valid UTF-8; mend it, or keep it "
            "with --invalid-utf8 keep."
        )
    return text


def _no_column(where: str, column: str, columns: list[str]) -> str:
    shown = ", ".join(map(repr, columns[:8])) + (", ..." if len(columns) > 8 else "")
    return f"{where} has no column {column!r}{closest(column, columns)}; name one of {shown} with --text-column."


def _parquet(path: File, column: str, options: ReadOptions) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path.open("rb") if isinstance(path, RemoteFile) else path) as file:
            schema = file.schema_arrow
            if column not in schema.names:
                raise DataError(_no_column(str(path), column, schema.names))
            kind = schema.field(column).type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_bytes(pa, kind)):
                raise DataError(f"{path}: the column {column!r} is {kind}, not text; name another with --text-column.")
            row, size = 0, sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
            rows = max(1, min(1024, _ROWS_BYTES * file.metadata.num_rows // max(size, 1)))
            for batch in file.iter_batches(batch_size=rows, columns=[column]):
                for value in pc.cast(batch.column(0), pa.large_binary()).to_pylist():
                    row += 1
                    yield f"{path}:{row}", "" if value is None else _decode_row(value, path, row, options)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of what the file holds
            raise
        raise DataError(f"{path} can't be read as Parquet ({(str(error).splitlines() or [''])[0]}).") from None


def _is_bytes(pa: Any, kind: Any) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_string_view(kind)


def _decode_row(data: bytes, path: File, row: int, options: ReadOptions) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if options.invalid_utf8 == "keep":
            return from_bytes(data)
        raise DataError(
            f"{path} row {row} is not valid UTF-8 at byte {error.start} of its text; mend it, or keep such bytes as "
            "they are with --invalid-utf8 keep."
        ) from None


def check_options(options: ReadOptions) -> None:
    """ConfigError for a value that can't be."""
    if options.invalid_utf8 not in ("refuse", "keep"):
        raise ConfigError(f"--invalid-utf8 is {options.invalid_utf8!r}; choose 'refuse' or 'keep'.")
    if options.split_bytes is not None and options.split_bytes != 0 and options.split_bytes < 64:
        raise ConfigError(
            f"--split-documents {options.split_bytes} is too small; choose 0 (never) or at least 64 bytes."
        )
