"""`areca export hf` and `areca import hf` without PyTorch: the way there and back, and a sentence for what can't be."""

import json
import math
import os
import resource
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from areca.cli.main import main
from areca.config import DataConfig, RunConfig
from areca.data.store import TokenStore
from areca.files import read_json, sha256_file
from areca.interop import huggingface
from areca.model import decoder
from areca.model.config import ModelConfig
from areca.train.evaluate import Evaluator
from areca.train.identity import parameters_sha256
from areca.train.models import read_model, write_model
from areca.train.restore import load_model, sample


@pytest.fixture(scope="module")
def exported(tiny_run, tmp_path_factory):
    """The tiny run's last checkpoint as a Hugging Face directory. Copy it to change it."""
    out = tmp_path_factory.mktemp("exported") / "hf"
    assert main(["export", "hf", str(tiny_run), "--out", str(out)]) == 0
    return out


@pytest.fixture
def copy(exported, tmp_path):
    """Such a directory that a test may change, taken as anyone's: without areca.json."""
    shutil.copytree(exported, tmp_path / "hf")
    (tmp_path / "hf" / "areca.json").unlink()
    return tmp_path / "hf"


def _model(path, config, context=16):
    """A model directory of random parameters."""
    path.mkdir()
    run = RunConfig(config, DataConfig(store="", context=context), tokens=0)
    write_model(path, run, decoder.init(config, jax.random.key(0)), step=0, tokenizer=None, origin={})
    return path


def _with_tokenizer(path, exported):
    shutil.copy(exported / "tokenizer.json", path / "tokenizer.json")
    return path


def _change(path, **values):
    found = read_json(path)
    path.write_text(json.dumps({k: v for k, v in (found | values).items() if v is not ...}))


def _refused(capsys, source, out, *words):
    before = sorted(out.parent.iterdir())
    assert main(["import", "hf", str(source), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert sorted(out.parent.iterdir()) == before  # nothing is left behind
    return error


# --- there and back


def test_an_exported_run_comes_back_to_the_bit(exported, tiny_run, tiny_store, tmp_path, capsys):
    result = read_json(tiny_run / "result.json")
    assert main(["import", "hf", str(exported), "--out", str(tmp_path / "back"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 12
    back, run = load_model(tmp_path / "back"), load_model(tiny_run)
    assert parameters_sha256(back.params) == result["parameters_sha256"]
    assert jax.tree.structure(back.params) == jax.tree.structure(run.params)
    assert back.tokenizer.sha256 == run.tokenizer.sha256
    assert replace(back.config, data=replace(back.config.data, store=str(tiny_store))) == run.config
    assert sample(tmp_path / "back", ["The river"], tokens=20) == sample(tiny_run, ["The river"], tokens=20)
    # The held-out loss that the run itself has recorded.
    held_out = Evaluator(run.config, TokenStore.open(tiny_store), back.params)(back.params)
    assert held_out["loss"] == result["loss"]
    # And the same files once more.
    huggingface.export_hf(tmp_path / "back", tmp_path / "again")
    files = read_json(exported / "areca.json")["files"]
    assert read_json(tmp_path / "again" / "areca.json")["files"] == files


def test_the_directory_says_all_that_others_would_guess(exported):
    assert sorted(p.name for p in exported.iterdir()) == [
        "areca.json", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    config = read_json(exported / "config.json")
    eod = json.loads((exported / "tokenizer.json").read_text())["added_tokens"][0]["id"]
    wanted = {
        "architectures": ["CohereForCausalLM"], "model_type": "cohere", "vocab_size": 300, "hidden_size": 16,
        "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 8, "hidden_act": "silu", "max_position_embeddings": 16, "layer_norm_eps": 1e-6,
        "logit_scale": 0.25, "rope_theta": 10_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "tie_word_embeddings": True,
        "attention_bias": False, "use_qk_norm": False, "bos_token_id": eod, "eos_token_id": eod, "dtype": "float32",
    }  # fmt: skip
    assert {k: config.get(k) for k in wanted} == wanted
    assert config["pad_token_id"] is None
    assert read_json(exported / "tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    tensors = load_file(exported / "model.safetensors")
    assert len(tensors) == 2 + 2 * 8
    assert "lm_head.weight" not in tensors
    assert tensors["model.layers.1.mlp.down_proj.weight"].shape == (16, 32)  # [out, in]
    assert "/" not in json.dumps(read_json(exported / "areca.json")["store"])  # no place of this machine
    assert read_json(exported / "areca.json")["config"]["data"]["store"] == ""


def test_one_checkpoint_of_a_run(tiny_run, tmp_path, capsys):
    for i, argv in enumerate(([str(tiny_run / "checkpoints" / "8")], [str(tiny_run), "--step", "8"])):
        assert main(["export", "hf", *argv, "--out", str(tmp_path / str(i)), "--json"]) == 0
        note = json.loads(capsys.readouterr().out)
        assert note["step"] == 8
        assert note["parameters_sha256"] == parameters_sha256(load_model(tiny_run, step=8).params)


def test_logits_of_mup_are_scaled_twice(tmp_path, exported):
    # Yang et al. 2022, table 8: beyond the base width logits fall as 1 / D and not as D^-1/2: here 1 / sqrt(64 x 4).
    model = _model(tmp_path / "wide", ModelConfig(300, 64, 1, 2, base_width=16))
    huggingface.export_hf(_with_tokenizer(model, exported), tmp_path / "hf")
    assert read_json(tmp_path / "hf" / "config.json")["logit_scale"] == 1 / 16
    huggingface.import_hf(tmp_path / "hf", tmp_path / "back")
    assert read_model(tmp_path / "back")[0].model.base_width == 16
    # As anyone's, it is a model without muP whose last norm has the factor of 1/2.
    (tmp_path / "hf" / "areca.json").unlink()
    said = []
    huggingface.import_hf(tmp_path / "hf", tmp_path / "plain", said.append)
    assert "logits" in said[0]
    one, other = load_model(tmp_path / "back"), load_model(tmp_path / "plain")
    assert other.config.model.base_width == 0
    tokens = jnp.arange(16)[None]
    logits = [np.asarray(decoder.logits(m.config.model, m.params, tokens)) for m in (one, other)]
    np.testing.assert_array_equal(*logits)  # a power of two loses nothing


def test_spare_rows_of_the_embedding_are_never_drawn(tmp_path, exported):
    model = _with_tokenizer(_model(tmp_path / "model", ModelConfig(304, 16, 1, 2)), exported)
    huggingface.export_hf(model, tmp_path / "hf")
    assert read_json(tmp_path / "hf" / "generation_config.json")["suppress_tokens"] == [300, 301, 302, 303]


def test_a_directory_of_anyone_is_what_its_config_says(copy, tmp_path, tiny_run):
    meta = huggingface.import_hf(copy, tmp_path / "out")
    assert meta["parameters_sha256"] == read_json(tiny_run / "result.json")["parameters_sha256"]
    config, _ = read_model(tmp_path / "out")
    assert config.model == replace(load_model(tiny_run).config.model, base_width=0)
    assert config.data.context == 16


def test_several_files_in_bfloat16(copy, tmp_path):
    tensors = {name: value.astype(jnp.bfloat16) for name, value in load_file(copy / "model.safetensors").items()}
    (copy / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, copy / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in files.items() for name in held}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    huggingface.import_hf(copy, tmp_path / "out")
    found = np.asarray(load_model(tmp_path / "out").params.layers.mlp_out[1])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.T, tensors["model.layers.1.mlp.down_proj.weight"].astype(np.float32))


def test_an_embedding_that_is_written_twice(copy, tmp_path, capsys):
    tensors = load_file(copy / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors | {"lm_head.weight": head}, copy / "model.safetensors")
    huggingface.import_hf(copy, tmp_path / "out")
    head[3, 4] += 1
    save_file(tensors | {"lm_head.weight": head}, copy / "model.safetensors")
    _refused(capsys, copy, tmp_path / "other", "lm_head.weight that is not its embedding")


def test_a_model_without_a_tokenizer_of_ours_can_be_trained_but_reads_no_text(copy, tmp_path, capsys):
    tokenizer = read_json(copy / "tokenizer.json")
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": {"type": "NFC"}}))
    assert main(["import", "hf", str(copy), "--out", str(tmp_path / "out")]) == 0
    assert "imported without a tokenizer" in capsys.readouterr().err
    assert main(["generate", str(tmp_path / "out")]) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err


# --- whole or absent


def test_nothing_is_there_before_all_is(tiny_run, tmp_path, monkeypatch):
    seen = []
    rename = huggingface.appear
    monkeypatch.setattr(
        huggingface, "appear", lambda a, b: seen.append((b.exists(), len(os.listdir(a)))) or rename(a, b)
    )
    huggingface.export_hf(tiny_run, tmp_path / "hf")
    huggingface.import_hf(tmp_path / "hf", tmp_path / "model")
    assert seen == [(False, 6), (False, 3)]
    assert sorted(os.listdir(tmp_path)) == ["hf", "model"]


def test_a_full_disk_leaves_nothing(tiny_run, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface, "_write_configs", full)
    assert main(["export", "hf", str(tiny_run), "--out", str(tmp_path / "hf")]) == 2
    assert f"the disk is full while writing {tmp_path / 'hf'};" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("verb", ["export", "import"])
def test_a_directory_that_exists_is_left_alone(verb, tiny_run, exported, tmp_path, capsys):
    source = tiny_run if verb == "export" else exported
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file", "empty"):
        assert main([verb, "hf", str(source), "--out", str(tmp_path / name)]) == 2
        assert f"{tmp_path / name} exists already" in capsys.readouterr().err
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "mine"


# --- what can't be exported


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        ({"block": "serial"}, "model.block is 'serial'"),
        ({"mlp": "gelu"}, "model.mlp is 'gelu'"),
        ({"positions": "learned", "n_positions": 16}, "model.positions is 'learned'"),
        ({"biases": True}, "model.biases is true"),
        ({"tied": False}, "model.tied is false"),
    ],
)
def test_a_switch_that_cohere_lacks_is_named(switch, words, exported, tmp_path, capsys):
    model = _with_tokenizer(_model(tmp_path / "model", ModelConfig(300, 16, 1, 2, **switch)), exported)
    assert main(["export", "hf", str(model), "--out", str(tmp_path / "hf")]) == 2
    error = capsys.readouterr().err
    assert f"{words}, which CohereForCausalLM can't say" in error
    assert error.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_sources_that_are_none(tiny_run, exported, tmp_path, capsys):
    for source, words in (
        (tmp_path / "none", "does not exist; name a run directory"),
        (exported, f"but a Hugging Face model; bring it in first, `areca import hf {exported} --out MODEL`, and"),
        (tiny_run / "checkpoints" / "7", "has no checkpoint of step 7"),
    ):
        assert main(["export", "hf", str(source), "--out", str(tmp_path / "hf")]) == 2
        assert words in capsys.readouterr().err
    argv = ["export", "hf", str(tiny_run / "checkpoints" / "8"), "--step", "12", "--out", str(tmp_path / "hf")]
    assert main(argv) == 2
    assert "--step is 12" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


# --- what can't be imported


def test_a_file_that_was_changed_after_the_export_is_named(exported, tmp_path, capsys):
    shutil.copytree(exported, tmp_path / "hf")
    weights = tmp_path / "hf" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    _refused(capsys, tmp_path / "hf", tmp_path / "out", "model.safetensors is not what was exported", "areca.json")
    weights.unlink()
    _refused(capsys, tmp_path / "hf", tmp_path / "out", "model.safetensors")
    (tmp_path / "hf" / "areca.json").write_text("[]")
    shutil.copy(exported / "model.safetensors", weights)
    _refused(capsys, tmp_path / "hf", tmp_path / "out", "is not what `areca export` writes")


def test_a_note_that_is_not_of_this_version(exported, tmp_path, capsys):
    shutil.copytree(exported, tmp_path / "hf")
    note = read_json(exported / "areca.json")
    for values, words in (
        ({"version": 2}, "is of version 2"),
        ({"config": note["config"] | {"model": note["config"]["model"] | {"d_model": 10**400}}}, "d_model is 1e+300"),
        ({"config": note["config"] | {"optimizer": {"momentum": 10**400}}}, "a number of 401 digits"),
        ({"config": note["config"] | {"of_tomorrow": 1}}, "config.of_tomorrow is not a setting"),
        ({"config": ...}, "is not this version's"),
        ({"parameters_sha256": "0" * 64}, "has other parameters than areca.json says"),
    ):
        (tmp_path / "hf" / "areca.json").write_text(json.dumps(note))
        _change(tmp_path / "hf" / "areca.json", **values)
        _refused(capsys, tmp_path / "hf", tmp_path / "out", words)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "llama"}, ["model_type 'llama'", "only 'cohere'"]),
        ({"model_type": "cohere2"}, ["model_type 'cohere2'"]),
        ({"model_type": ...}, ["model_type None"]),
        ({"attention_bias": True}, ["attention_bias true"]),
        ({"use_qk_norm": True}, ["use_qk_norm true"]),
        ({"tie_word_embeddings": False}, ["tie_word_embeddings false"]),
        ({"hidden_act": "gelu"}, ['hidden_act "gelu"']),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, ["rope_type 'default'"]),
        ({"rope_parameters": ..., "rope_theta": ...}, ["has no rope_theta"]),
        ({"rope_theta": 500_000.0}, ["rope_theta 500000.0 and 10000.0 in rope_parameters"]),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, ["partial_rotary_factor"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_scaling"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config"]),
        ({"hidden_size": "16"}, ['hidden_size "16"', "whole number"]),
        ({"hidden_size": -16}, ["hidden_size -16"]),
        ({"hidden_size": ...}, ["has no hidden_size"]),
        ({"hidden_size": 17}, ["of shape", "[300, 17]"]),
        ({"num_hidden_layers": 3}, ["has no tensor model.layers.2."]),
        ({"num_hidden_layers": 2_000_000_000}, ["too few for 2000000000 layers"]),
        ({"num_hidden_layers": 1}, ["has a tensor model.layers.1."]),
        ({"num_attention_heads": 3}, ["of shape"]),
        ({"num_key_value_heads": 3}, ["must divide n_heads 2"]),
        ({"head_dim": 7}, ["must be even"]),
        ({"vocab_size": 2**40}, ["vocab_size 1099511627776"]),
        ({"layer_norm_eps": float("nan")}, ["layer_norm_eps NaN"]),
        ({"logit_scale": 10**400}, ["logit_scale"]),
        ({"max_position_embeddings": True}, ["max_position_embeddings true"]),
    ],
)
def test_a_config_that_is_no_model_of_ours_is_one_sentence(values, words, copy, tmp_path, capsys):
    _change(copy / "config.json", **values)
    _refused(capsys, copy, tmp_path / "out", *words)


def _weights(change):
    def apply(path):
        tensors = load_file(path / "model.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors")

    return apply


def _cut(share):
    def apply(path):
        data = (path / "model.safetensors").read_bytes()
        (path / "model.safetensors").write_bytes(data[: int(len(data) * share)])

    return apply


def _only(name, content):
    def apply(path):
        (path / "model.safetensors").unlink()
        (path / name).write_bytes(content)

    return apply


def _index(weight_map):
    return _only("model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())


DOWN = "model.layers.0.mlp.down_proj.weight"


def _set(value):
    def change(tensors):
        tensors[DOWN][3, 4] = value

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut(0.5), ["cut short or damaged"]),
        (_cut(0.01), ["cut short or damaged"]),
        (_cut(0), ["cut short or damaged"]),
        (_only("pytorch_model.bin", b"\x80\x04."), ["pytorch_model.bin, a pickle"]),
        (_only("readme.md", b""), ["neither model.safetensors nor"]),
        (_index({DOWN: "../model.safetensors"}), ["no .safetensors file beside it"]),
        (_index({DOWN: "weights.bin"}), ["no .safetensors file beside it"]),
        (_index({DOWN: "model-1.safetensors"}), ["model-1.safetensors is missing"]),
        (_index([]), ["has no weight_map"]),
        (_weights(lambda t: t.pop(DOWN)), [f"has no tensor {DOWN}"]),
        (_weights(lambda t: t.update(extra=np.ones(2))), ["has a tensor extra"]),
        (_weights(lambda t: t.update({DOWN: t[DOWN].T.copy()})), ["shape [32, 16]", "[16, 32]"]),
        (_weights(lambda t: t.update({DOWN: t[DOWN].astype(np.float64)})), [DOWN, "F64", "F32, BF16, F16"]),
        (_weights(lambda t: t.update({DOWN: t[DOWN].astype(np.int8)})), ["I8"]),
        (_weights(_set(math.nan)), [f"values in {DOWN} that are not finite"]),
        (_weights(_set(math.inf)), ["not finite"]),
        (lambda path: (path / "config.json").write_text("{"), ["config.json is not valid JSON"]),
        (lambda path: (path / "config.json").write_text("[1]"), ["must be a JSON object"]),
        (lambda path: (path / "config.json").unlink(), ["has no config.json"]),
        (
            lambda path: (path / "config.json").write_text(f'{{"hidden_size": {"9" * 5000}}}'),
            ["is not valid JSON", "digits"],
        ),
    ],
)
def test_damaged_directories_are_one_sentence(damage, words, copy, tmp_path, capsys):
    damage(copy)
    _refused(capsys, copy, tmp_path / "out", *words)


def test_a_name_on_the_hub_is_no_directory(tmp_path, capsys):
    _refused(capsys, "owner/name", tmp_path / "out", "no directory owner/name", "hf download")


def test_the_digests_are_those_of_the_files(exported):
    files = read_json(exported / "areca.json")["files"]
    assert len(files) == 5
    assert all(sha256_file(exported / name) == digest for name, digest in files.items())


def test_a_disk_that_takes_no_more_is_said_in_one_sentence(tiny_run, tmp_path, monkeypatch, capsys):
    # What safetensors raises on a full disk (0.6 and 0.7), and, from the system itself, a file that may grow no more.
    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("safetensors.numpy.save_file", full)
        assert main(["export", "hf", str(tiny_run), "--out", str(out)]) == 2
    assert (
        capsys.readouterr().err == f"areca export: the disk is full while writing {out}; free some and run it again.\n"
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        code = main(["export", "hf", str(tiny_run), "--out", str(out)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith(f"areca export: {out} may not grow as large as it has to (`ulimit -f`)")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # nothing half written is left
