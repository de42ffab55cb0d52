"""`areca corpus build | list | show`: token stores made from text."""

import sys
from pathlib import Path
from typing import Any, Literal

from areca.cli.options import dispatch, print_json
from areca.cli.tables import plain_table, wide_console


def run(argv: list[str]) -> int:
    """Runs `areca corpus ...`."""
    return dispatch({"build": build, "list": list_, "show": show}, argv, "areca corpus") or 0


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


def build(
    sources: list[str],
    /,
    *,
    out: str,
    vocab_size: int | None = None,
    tokenizer: Path | None = None,
    tokenizer_kind: Literal["byte-bpe", "unigram", "bpe"] = "byte-bpe",
    user_symbols: tuple[str, ...] = (),
    text_column: str = "text",
    heldout: float = 0.05,
    invalid_utf8: Literal["refuse", "keep"] = "refuse",
    near_duplicates: bool = True,
    split_documents: int | None = None,
    processes: int = 0,
    json: bool = False,
) -> int:
    """Build a token store from text.

    Example: areca corpus build docs:0.6 mine=books.jsonl.zst:0.4 --out stores/mixed --vocab-size 4096

    A source is a built-in corpus (`areca corpus list`), a text file, .jsonl or .parquet (also .gz, .zst) or a directory
    of such files, written PATH or NAME=PATH; `:WEIGHT` at its end is the corpus' share of the training tokens. A PATH
    may be a URL, s3://bucket/raw/*.jsonl.zst, gs://... or hf://datasets/OWNER/NAME, and so may the store.

    Args:
        sources: what to read, one corpus for each name
        out: directory or URL of the store; must not exist, or be a store of the same inputs
        vocab_size: tokens of the tokenizer that is trained, 257 to 256000 (default 1024)
        tokenizer: a tokenizer.json or a SentencePiece *.model to use instead of training one
        tokenizer_kind: of the tokenizer that is trained: byte-level BPE, or SentencePiece's unigram or BPE with byte
            fallback (areca[sentencepiece])
        user_symbols: strings that are one token wherever text has them, such as "<|code|>"
        text_column: of .jsonl and .parquet: one for all, or NAME=COLUMN,NAME=COLUMN for sources with names
        heldout: share of the documents that training never sees, chosen by a hash of their content
        invalid_utf8: refuse bytes that are not UTF-8, or keep them exactly
        near_duplicates: keep near duplicates; exact ones are dropped all the same
        split_documents: cut text files into documents of so many bytes; 0 never (default: single files, into 4096)
        processes: that tokenize, to the same bytes (default: one for each core)
        json: print the store's description as JSON
    """
    from areca.data.build import build_store

    meta = build_store(
        out,
        sources,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        tokenizer_kind=tokenizer_kind,
        user_symbols=user_symbols,
        heldout_fraction=heldout,
        near_duplicates=near_duplicates,
        invalid_utf8=invalid_utf8,
        text_column=text_column,
        split_bytes=split_documents,
        processes=processes,
        progress=say,
    )
    if json:
        print_json(meta)
    else:
        _table(out, meta)
    return 0


def list_(*, json: bool = False) -> int:
    """List the built-in corpora.

    Example: areca corpus list

    Args:
        json: print as JSON
    """
    from areca.data.corpora import BUILTIN, installed

    rows = [
        {"name": b.name, "summary": b.summary, "megabytes": b.megabytes, "licence": b.licence,
         "installed": installed(b.name), "install": b.install}
        for b in BUILTIN.values()
    ]  # fmt: skip
    if json:
        print_json(rows)
        return 0
    for r in rows:
        state = "installed" if r["installed"] else f"pip install {r['install']}"
        print(f"{r['name']:<10} {r['megabytes']:>3} MB  {r['summary']}  [{r['licence']}]  {state}")
    return 0


def show(store: str, /, *, sample: int = 0, mixture: int = 0, verify: bool = False, json: bool = False) -> int:
    """Show what a token store holds.

    Example: areca corpus show stores/mixed --sample 2

    Args:
        store: directory or URL of the store
        sample: print the first tokens of so many held-out documents of each corpus
        mixture: print what so many training tokens hold of each corpus, and how often it repeats
        verify: recompute the digest of every file
        json: print the store's description as JSON
    """
    from areca.data import samples
    from areca.data.store import TokenStore

    opened = TokenStore.open(store, verify=verify)
    shown = samples.samples(opened, sample)
    mixed = samples.mixture(opened, mixture) if mixture else []
    if json:
        asked = {"verified": True if verify else None, "samples": shown if sample else None, "mixture": mixed or None}
        print_json(opened.meta | {k: v for k, v in asked.items() if v is not None})
        return 0
    _table(store, opened.meta)
    if verify:
        print(f"verified: all {len(opened.meta['files'])} files have the digests they were built with")
    for m in mixed:
        print(
            f"{m['corpus']}: {m['share']:.1%} of {mixture:,} tokens (asked {m['weight']:.1%}), {m['epochs']:.2f} epochs"
        )
    for s in shown:
        print(f"\n--- {s['corpus']}, held-out document {s['document']} ---\n{s['text']}")
    return 0


def _table(path: str, meta: dict[str, Any]) -> None:
    table = plain_table(title=str(path), title_justify="left")
    table.add_column("corpus", no_wrap=True, overflow="ignore", min_width=12)
    for column in ("MB", "documents", "tokens", "held out", "B/token", "duplicate", "weight"):
        table.add_column(column, justify="right")
    for c in meta["corpora"]:
        tokens = c["train_tokens"] + c["heldout_tokens"]
        duplicates = c["removed"]["exact"]["share"] + c["removed"]["near"]["share"]
        table.add_row(
            c["name"], f"{c['bytes'] / 1e6:.1f}", f"{c['train_documents'] + c['heldout_documents']:,}", f"{tokens:,}",
            f"{c['heldout_tokens'] / tokens:.1%}", f"{c['bytes'] / tokens:.2f}", f"{duplicates:.1%}",
            "size" if c["weight"] is None else f"{c['weight']:g}",
        )  # fmt: skip
    wide_console().print(table)
    print(f"vocabulary {meta['vocab_size']:,} ({meta['dtype']}), fingerprint {meta['fingerprint'][:16]}")
