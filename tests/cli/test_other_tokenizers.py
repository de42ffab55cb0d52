"""From text to a server with tokenizers that are not the default: stores, runs, text, Hugging Face both ways."""

import json

import pytest

from areca.cli.main import main
from areca.config import ModelConfig, to_dict
from areca.data.tokenizer import load_tokenizer
from areca.files import read_json, sha256_file, write_json
from areca.train.restore import load_model, sample
from other_tokenizers import SYMBOL, write_tokenizer
from tiny import text, tiny_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps on a store that `--tokenizer` made."""
    root = tmp_path_factory.mktemp("other")
    tokenizer = load_tokenizer(write_tokenizer(root / "t.json", "unigram"))
    (root / "text").mkdir()
    for i in range(40):
        (root / "text" / f"{i:02}.txt").write_text(text(i) + f"{SYMBOL}\u65e5\u672c \u2581 [eod] <0x41> \U0001f600\n")
    argv = ["corpus", "build", f"t={root / 'text'}", "--tokenizer", str(root / "t.json"), "--heldout", "0.2"]
    assert main([*argv, "--out", str(root / "store")]) == 0
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=16, n_layers=1, n_heads=2, d_ff=32)
    write_json(root / "run.json", to_dict(tiny_config(root / "store", model=model, tokens=4 * 4 * 16)))
    assert main(["train", str(root / "run.json"), "--out", str(root / "run")]) == 0
    return root / "run"


def test_a_store_holds_the_text_and_says_what_cut_it(run, capsys):
    store = run.parent / "store"
    assert main(["corpus", "show", str(store), "--sample", "1", "--verify", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["eod_id"] == 1
    assert shown["tokenizer_sha256"] == sha256_file(store / "tokenizer.json")
    tokenizer = load_tokenizer(store / "tokenizer.json")
    assert shown["samples"][0]["text"].removesuffix(" ...")[:60] in "".join(text(i) for i in range(40))
    assert main(["tokenizer", "show", str(store), "--text", f"areca{SYMBOL} \u2581", "--json"]) == 0
    pieces = [t["text"] for t in json.loads(capsys.readouterr().out)["tokens"]]
    assert pieces == ["areca", SYMBOL, " ", "\\xe2", "\\x96", "\\x81"]
    assert tokenizer.kind == "unigram"


def test_text_goes_to_a_directory_of_hugging_face_and_back(run, tmp_path):
    assert main(["export", "hf", str(run), "--out", str(tmp_path / "hf")]) == 0
    assert sha256_file(tmp_path / "hf" / "tokenizer.json") == sha256_file(run.parent / "store" / "tokenizer.json")
    config = read_json(tmp_path / "hf" / "tokenizer_config.json")
    assert (config["tokenizer_class"], config["eos_token"]) == ("PreTrainedTokenizerFast", "[eod]")
    assert read_json(tmp_path / "hf" / "config.json")["eos_token_id"] == 1
    assert main(["import", "hf", str(tmp_path / "hf"), "--out", str(tmp_path / "back")]) == 0
    assert load_model(tmp_path / "back").tokenizer.sha256 == load_model(run).tokenizer.sha256
    prompts = ["areca palm", "", f"{SYMBOL} \u65e5\u2581[eod]"]
    ours = sample(run, prompts, tokens=6)
    assert [s["prompt"] for s in ours] == [prompts[0], "", prompts[2]]
    assert sample(tmp_path / "back", prompts, tokens=6) == ours
