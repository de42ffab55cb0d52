"""Exported directories as transformers sees them, offline: logits, tokens, text; and back, also what it saved."""

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test-interop installs PyTorch")
transformers = pytest.importorskip("transformers")

import jax  # noqa: E402

from areca.config import DataConfig, RunConfig  # noqa: E402
from areca.data.tokenizer import load_tokenizer  # noqa: E402
from areca.files import read_json  # noqa: E402
from areca.interop import huggingface  # noqa: E402
from areca.model import decoder  # noqa: E402
from areca.model.config import ModelConfig  # noqa: E402
from areca.train.models import write_model  # noqa: E402
from areca.train.restore import load_model, sample  # noqa: E402
from other_tokenizers import SYMBOL, write_tokenizer  # noqa: E402

SHAPES = {
    "multi-query": ModelConfig(vocab_size=300, d_model=48, n_layers=3, n_heads=4),
    "heads x width is not D": ModelConfig(vocab_size=300, d_model=40, n_layers=2, n_heads=3, head_dim=8, d_ff=56),
    "multi-head": ModelConfig(vocab_size=300, d_model=48, n_layers=2, n_heads=4, n_kv_heads=4),
    "muP, tokens to spare": ModelConfig(vocab_size=320, d_model=64, n_layers=7, n_heads=2, n_kv_heads=1, base_width=16),
}
ODD = [
    "", " ", "\n", "\r\n\t", "a  b   c", " leading", "trailing ", "Hello, world! 1234567890", "don't I'm we've I 'LL",
    "caf\u00e9 cafe\u0301 \ufb01 \u00c5 \u212b", "\u4f60\u597d\uff0c\u4e16\u754c", "\u0645\u0631\u062d\u0628\u0627",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467", "\0 \x01 \x7f", "\u2028 \u00a0 \ufeff \u200b",
    "[eod]", "a[eod]b [eod] [EOD]", "<s></s><unk>[UNK][PAD]<|endoftext|>", " .,!?' n't 's", "x" * 3000, "\ufffd", "\r",
]  # fmt: skip


def _written(config, tiny_run, tmp_path_factory, scale=1.0):
    """A model directory of random parameters, norm scales away from one, and its export; `scale` is the logits'."""
    params = decoder.init(config, jax.random.key(1))
    noise = np.random.default_rng(1)
    scales = lambda a: noise.uniform(0.5, 1.5, a.shape).astype(np.float32)  # noqa: E731
    layers = dataclasses.replace(params.layers, norm=scales(params.layers.norm))
    params = dataclasses.replace(params, norm=np.float32(scale) * scales(params.norm), layers=layers)
    path = tmp_path_factory.mktemp("model")
    run = RunConfig(config, DataConfig(store="", context=64), tokens=0)
    write_model(path, run, params, step=0, tokenizer=load_model(tiny_run).tokenizer_path.read_bytes(), origin={})
    out = tmp_path_factory.mktemp("exported") / "hf"
    huggingface.export_hf(path, out)
    return path, out


@pytest.fixture(scope="module", params=SHAPES)
def model(request, tiny_run, tmp_path_factory):
    return _written(SHAPES[request.param], tiny_run, tmp_path_factory)


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "run"
    huggingface.export_hf(tiny_run, out)
    return out


def _load(path):
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        path, local_files_only=True, output_loading_info=True, dtype="auto"
    )
    assert not any(info.values())  # nothing missing, unexpected or of another shape
    return loaded.eval()


def _logits(path, out):
    """Ours and those of transformers."""
    trained, loaded = load_model(path), _load(out)
    assert type(loaded).__name__ == "CohereForCausalLM"
    assert loaded.dtype == torch.float32
    tokens = np.random.default_rng(0).integers(0, 300, (2, 64), dtype=np.int32)
    ours = np.asarray(jax.jit(lambda p, t: decoder.logits(trained.config.model, p, t))(trained.params, tokens))
    with torch.no_grad():
        return ours, loaded(torch.from_numpy(tokens).long()).logits.numpy()


def test_logits_are_ours(model):
    ours, theirs = _logits(*model)
    assert np.abs(theirs).max() > 0.5
    assert np.abs(ours - theirs).max() < 1e-5


def test_logits_as_large_as_a_trained_model_s_are_ours(tiny_run, tmp_path_factory):
    """Sums of numbers that large are known to some of float32's steps, which are 1.9e-6 at 16: within 1e-6 of it."""
    ours, theirs = _logits(*_written(SHAPES["multi-query"], tiny_run, tmp_path_factory, scale=5.0))
    assert np.abs(theirs).max() > 16
    assert np.abs(ours - theirs).max() < 1e-6 * np.abs(theirs).max()


@pytest.mark.parametrize("model", ["heads x width is not D", "muP, tokens to spare"], indirect=True)
def test_greedy_text_is_ours(model):
    path, out = model
    tokenizer, loaded = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True), _load(out)
    for prompt in ("The river", "areca palm 12"):
        given = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            ids = loaded.generate(**given, do_sample=False, max_new_tokens=24)[0, given["input_ids"].shape[1] :]
        [ours] = sample(path, [prompt], tokens=24, temperature=0)
        assert tokenizer.decode(ids, skip_special_tokens=True) == ours["text"]


def test_tokens_of_odd_strings_are_ours(exported, tiny_run):
    theirs = transformers.AutoTokenizer.from_pretrained(exported, local_files_only=True)
    ours = load_model(tiny_run).tokenizer
    for text in ODD:
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == ids, repr(text)
        assert theirs.decode(ids) == text, repr(text)
    assert theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id == ours.eod_id
    assert theirs(["a", "a b"], padding=True)["attention_mask"][0][-1] == 0
    assert len(theirs) == ours.vocab_size
    assert set(theirs("a")) == {"input_ids", "attention_mask"}  # what the model takes


def test_special_tokens_are_ours_and_not_coheres(exported, tiny_run):
    eod = load_model(tiny_run).tokenizer.eod_id
    loaded = _load(exported)
    assert (loaded.config.bos_token_id, loaded.config.eos_token_id, loaded.config.pad_token_id) == (eod, eod, None)
    assert loaded.generation_config.eos_token_id == loaded.generation_config.pad_token_id == eod
    assert loaded.config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}
    assert loaded.model.embed_tokens.padding_idx is None  # its row would not learn


def test_what_transformers_saves_comes_back(exported, tiny_run, tmp_path):
    loaded = _load(exported)
    loaded.save_pretrained(tmp_path / "saved", max_shard_size="20KB")
    transformers.AutoTokenizer.from_pretrained(exported, local_files_only=True).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors.index.json").exists()  # in several files
    said = []
    meta = huggingface.import_hf(tmp_path / "saved", tmp_path / "back", said.append)
    assert said == []
    assert meta["parameters_sha256"] == read_json(tiny_run / "result.json")["parameters_sha256"]
    assert sample(tmp_path / "back", ["stone"], tokens=9) == sample(tiny_run, ["stone"], tokens=9)


def test_what_transformers_trained_comes_back_in_bfloat16(exported, tmp_path):
    loaded = _load(exported).to(torch.bfloat16)
    loss = loaded(torch.arange(20)[None], labels=torch.arange(20)[None]).loss
    loss.backward()
    torch.optim.SGD(loaded.parameters(), lr=1.0).step()
    loaded.save_pretrained(tmp_path / "tuned")
    huggingface.import_hf(tmp_path / "tuned", tmp_path / "back")
    wanted = loaded.model.layers[1].mlp.down_proj.weight.detach().float().numpy()
    from areca.train.models import read_model
    from areca.train.restore import _parameters

    config, _ = read_model(tmp_path / "back")
    found = np.asarray(_parameters(tmp_path / "back", config, None)[0].layers.mlp_out[1])
    np.testing.assert_array_equal(found.T, wanted)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_tokens_of_other_kinds_are_ours(tmp_path, kind):
    ours = write_tokenizer(tmp_path / "t.json", kind)
    tokenizer = load_tokenizer(ours)
    config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=16, n_layers=1, n_heads=2)
    run = RunConfig(config, DataConfig(store="", context=64), tokens=0)
    (tmp_path / "model").mkdir()
    params = decoder.init(config, jax.random.key(1))
    write_model(tmp_path / "model", run, params, step=0, tokenizer=ours.read_bytes(), origin={})
    huggingface.export_hf(tmp_path / "model", tmp_path / "hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    for text in [*ODD, f"a{SYMBOL}b", "areca palm 12", "\u2581 <0x41> <unk>", "\u65e5\u672c"]:
        ids = tokenizer.encode(text)
        assert theirs(text)["input_ids"] == ids, repr(text)
        assert theirs.decode(ids) == text, repr(text)
    assert theirs.eos_token_id == tokenizer.eod_id == 1
    assert len(theirs) == tokenizer.vocab_size
