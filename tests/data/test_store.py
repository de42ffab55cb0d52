"""A store that is damaged in any way is refused with one sentence."""

import json
import shutil

import numpy as np
import pytest

from areca.data.store import TokenStore
from areca.errors import DataError


@pytest.fixture
def copy(store_path, tmp_path):
    shutil.copytree(store_path, tmp_path / "store")
    return tmp_path / "store"


def test_tokens_are_mapped_not_read(store_path):
    store = TokenStore.open(store_path, verify=True)
    tokens = store.tokens("big", "train")
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == np.uint16
    assert not tokens.flags.writeable
    assert len(tokens) == store.corpus("big").train_tokens
    assert tokens.max() < store.vocab_size
    assert np.sum(tokens == store.eod_id) == store.corpus("big").train_documents


@pytest.mark.parametrize("name", ["big.train.bin", "small.heldout.bin"])
def test_a_file_of_the_wrong_size_is_refused(copy, name):
    data = (copy / name).read_bytes()
    for wrong in (data[:-1], data[:-2], data + b"\0\0"):
        (copy / name).write_bytes(wrong)
        with pytest.raises(DataError, match=f"{name} has .* bytes instead of"):
            TokenStore.open(copy)
    (copy / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        TokenStore.open(copy)


@pytest.mark.parametrize("name", ["big.train.bin", "big.heldout.bin", "tokenizer.json"])
def test_a_flipped_bit_is_found_by_verification(copy, name):
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    TokenStore.open(copy)
    with pytest.raises(DataError, match=f"{name} is damaged"):
        TokenStore.open(copy, verify=True)


def edit(copy, **changes):
    meta = json.loads((copy / "store.json").read_text()) | changes
    (copy / "store.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 99}, "version 99"),
        ({"format": "other"}, "does not describe"),
        ({"vocab_size": 999}, "was changed"),
        ({"eod_id": 5}, "was changed"),
        ({"dtype": "<u4"}, "was changed"),
        ({"corpora": 3}, "damaged"),
        ({"corpora": [{}]}, "damaged"),
        ({"files": {}}, "damaged"),
    ],
)
def test_a_changed_description_is_refused(copy, changes, message):
    edit(copy, **changes)
    with pytest.raises(DataError, match=message):
        TokenStore.open(copy)


def test_what_is_no_store_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no token store"):
        TokenStore.open(tmp_path / "none")
    with pytest.raises(DataError, match=r"no store\.json"):
        TokenStore.open(tmp_path)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        TokenStore.open(tmp_path)


def test_an_unknown_corpus_is_named(store_path):
    with pytest.raises(DataError, match=r"no corpus 'bigg' \(did you mean 'big'\?\)"):
        TokenStore.open(store_path).tokens("bigg", "train")
