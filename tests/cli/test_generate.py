"""`areca generate` and the function below it: text from a run's checkpoint, and a sentence for what can't be."""

import json
import shutil

import numpy as np
import pytest

from areca.cli.main import main
from areca.data.tokenizer import load_tokenizer
from areca.errors import CheckpointError, DataError
from areca.files import read_json
from areca.model.sampling import Sampling
from areca.train import restore
from areca.train.loop import parameters_sha256
from areca.train.restore import load_model, sample, sample_and_cost
from tiny import build_tiny_store


@pytest.fixture
def copy(tiny_run, tmp_path):
    """A copy of the finished run that a test may change."""
    return shutil.copytree(tiny_run, tmp_path / "copy")


def test_the_model_is_the_one_that_was_trained(tiny_run):
    model = load_model(tiny_run)
    assert parameters_sha256(model.params) == read_json(tiny_run / "result.json")["parameters_sha256"]
    assert (model.step, model.config.data.context, model.tokenizer.vocab_size) == (12, 16, 300)
    assert load_model(tiny_run, step=8).step == 8


def test_text_continues_the_prompt_and_is_the_same_again(tiny_run, capsys):
    command = ["generate", str(tiny_run), "--prompt", "The river", "--tokens", "20", "--seed", "3"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert first.startswith("The river")
    assert main(command) == 0
    assert capsys.readouterr().out == first
    assert main([*command[:-1], "4"]) == 0
    assert capsys.readouterr().out != first


def test_json_has_each_continuation(tiny_run, capsys):
    assert main(["generate", str(tiny_run), "--prompt", "stone", "--count", "3", "--tokens", "30", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    samples = printed["samples"]
    assert [s["prompt"] for s in samples] == ["stone"] * 3
    assert len({s["text"] for s in samples}) == 3
    assert all(s["tokens"] == 30 or s["ended"] for s in samples)
    [alone] = sample(tiny_run, ["stone"], tokens=30)
    assert alone == samples[0]  # the first of three is the one alone


def test_text_is_written_as_it_is_made(tiny_run):
    written: list[tuple[int, str]] = []
    begun: list[list[str]] = []
    samples, _ = sample_and_cost(
        tiny_run, ["palm", "stone"], 30, Sampling(2.0, 0), begin=begun.append, write=lambda *new: written.append(new)
    )
    assert begun == [["palm", "stone"]]
    for i, s in enumerate(samples):
        mine = [text for place, text in written if place == i]
        assert "".join(mine) == s["text"]
        assert len(mine) >= 30 // 4 - 1  # four tokens at a time, unless they end inside a character
    assert sample(tiny_run, ["palm", "stone"], tokens=30, temperature=2.0, top_k=0) == samples


def test_a_stop_string_ends_a_text_before_it(tiny_run, capsys):
    [free] = sample(tiny_run, ["river"], tokens=30, seed=2)
    stop = free["text"][5:8]
    assert main(["generate", str(tiny_run), "--prompt", "river", "--tokens", "30", "--seed", "2", "--stop", stop]) == 0
    assert capsys.readouterr().out == "river" + free["text"][: free["text"].index(stop)] + "\n"


def test_what_a_generation_takes_is_said_per_1000_tokens(tiny_run, capsys, monkeypatch):
    monkeypatch.setenv("ARECA_REGION", "taiwan")
    assert main(["generate", str(tiny_run), "--prompt", "stone", "--count", "2", "--tokens", "30", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    cost, tokens = printed["footprint"], sum(s["tokens"] for s in printed["samples"])
    assert cost["tokens"] == tokens
    kwh = cost["kwh_per_1000_tokens"]
    assert kwh["value"] * tokens / 1000 == pytest.approx(cost["energy_kwh"]["value"])
    assert kwh["kind"] == cost["energy_kwh"]["kind"]
    # Taiwan's grid, Patterson et al. 2021: 0.545 kg/kWh, which is 545 g/kWh.
    assert cost["gco2e_per_1000_tokens"]["value"] == pytest.approx(545 * kwh["value"])
    assert main(["generate", str(tiny_run), "--prompt", "stone", "--tokens", "5"]) == 0
    streams = capsys.readouterr()
    assert "per 1,000 tokens" in streams.err
    assert "per 1,000 tokens" not in streams.out  # the text alone
    monkeypatch.setenv("ARECA_REGION", "atlantis")
    assert main(["generate", str(tiny_run)]) == 2
    assert "ARECA_REGION: there is no region 'atlantis'" in capsys.readouterr().err


@pytest.mark.parametrize(("prompt", "count", "tokens"), [("stone", 5, 8), ("", 6, 4), ("palm grove", 7, 40)])
def test_nothing_is_compiled_in_what_is_charged(tiny_run, monkeypatch, prompt, count, tokens):
    # Five to seven texts side by side are no other test's, so no program of theirs is there yet; 40 tokens outgrow 16.
    import jax

    watched: list[str] = []
    seen: list[str] = []

    class Watch(restore.Watch):
        def __enter__(self):
            seen.clear()
            return super().__enter__()

        def __exit__(self, *error):
            watched.extend(seen)
            seen.clear()
            super().__exit__(*error)

    def listen(event, seconds, **more):
        seen.append(f"{event} {more.get('fun_name')}")

    monkeypatch.setattr(restore, "Watch", Watch)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        sample_and_cost(tiny_run, [prompt] * count, tokens, Sampling(), begin=lambda _: watched.append(str(len(seen))))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    before, *inside = watched
    assert int(before) > 0  # what is listened to is there
    assert [e for e in inside if "/compile/" in e] == []


def test_greedy_text_is_what_the_model_says(tiny_run):
    # One token at a time through the function that training uses.
    import jax

    from areca.model import decoder

    model = load_model(tiny_run)
    logits = jax.jit(lambda t: decoder.logits(model.config.model, model.params, t))
    ids = model.tokenizer.encode("areca palm")
    start = len(ids)
    while len(ids) < 16:
        window = np.zeros((1, 16), np.int32)
        window[0, : len(ids)] = ids
        ids.append(int(np.asarray(logits(window))[0, len(ids) - 1].argmax()))
    expected = model.tokenizer.decode_bytes(ids[start:]).decode("utf-8", "replace")
    assert sample(tiny_run, ["areca palm"], tokens=16 - start, temperature=0)[0]["text"] == expected


def test_an_empty_prompt_begins_a_document(tiny_run):
    [empty] = sample(tiny_run, [""], tokens=5, temperature=0)
    assert empty["prompt"] == ""
    assert empty["tokens"] == 5 or empty["ended"]


def test_the_store_may_be_moved(copy, tiny_store, tmp_path, capsys):
    run = read_json(copy / "run.json")
    run["store"]["path"] = str(tmp_path / "gone")
    (copy / "run.json").write_text(json.dumps(run))
    assert main(["generate", str(copy), "--tokens", "3"]) == 2
    assert (
        f"the token store {tmp_path / 'gone'} of {copy} is gone; say where it is now with --store."
        in capsys.readouterr().err
    )
    assert main(["generate", str(copy), "--tokens", "3", "--store", str(tiny_store)]) == 0
    with pytest.raises(DataError, match="is not the tokenizer that"):
        sample(copy, [""], store=build_tiny_store(tmp_path / "other", seed=1))


def test_a_damaged_checkpoint_is_found_and_the_one_before_it_named(copy, capsys):
    largest = max((p for p in (copy / "checkpoints" / "12").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert main(["generate", str(copy), "--tokens", "3"]) == 2
    said = capsys.readouterr().err
    assert "checkpoint step 12" in said
    assert "step 8 is intact: use --step 8." in said
    assert main(["generate", str(copy), "--tokens", "3", "--step", "8"]) == 0


def test_nothing_is_changed_in_the_run(copy):
    shutil.copytree(copy / "checkpoints" / "8", copy / "checkpoints" / "99")  # a writer would sweep this away
    before = sorted((str(p), p.stat().st_mtime_ns) for p in copy.rglob("*"))
    sample(copy, [""], tokens=2)
    assert sorted((str(p), p.stat().st_mtime_ns) for p in copy.rglob("*")) == before


def test_a_run_without_a_checkpoint_has_no_text_yet(copy):
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        sample(copy, [""])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--prompt", "palm " * 20],
            "tokens long and the model was trained on 16 at a time; shorten it to at most 15.",
        ),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--top-p", "0"], "top_p is 0.0"),
        (["--top-k", "-1"], "top_k is -1"),
        (["--tokens", "0"], "--tokens is 0; it must be from 1 to 1,000,000."),
        (["--tokens", "1000001"], "--tokens is 1,000,001; it must be from 1 to 1,000,000."),
        (["--count", "0"], "--count is 0; it must be from 1 to 128."),
        (["--count", "129"], "--count is 129; it must be from 1 to 128."),
        (["--count", "1000000000000"], "--count is 1,000,000,000,000; it must be"),
        (["--step", "5"], "has no checkpoint of step 5; the record lists 8, 12."),
        (["--store", "nowhere"], "there is no token store nowhere"),
        (["--tempature", "1"], "did you mean '--temperature'?"),
    ],
)
def test_what_cannot_be_generated_is_said_in_one_sentence(tiny_run, capsys, options, says):
    assert main(["generate", str(tiny_run), *options]) == 2
    streams = capsys.readouterr()
    assert says in streams.err
    assert streams.err.count("\n") == 1
    assert streams.out == ""


def test_a_directory_that_is_no_run_is_said(tmp_path, capsys):
    assert main(["generate", str(tmp_path)]) == 2
    assert "is not a run directory (it has no run.json); name one that `areca train` made." in capsys.readouterr().err


@pytest.mark.parametrize("below", ["verify", "runs/d16", "ladder/runs/d16", "first"])
def test_of_a_directory_of_runs_one_is_named(tmp_path, capsys, below):
    run = tmp_path / below
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    assert main(["generate", str(tmp_path)]) == 2
    assert f"but one of several runs; name one of them, such as {run}." in capsys.readouterr().err


def test_bytes_that_are_no_utf8_are_shown_not_raised(tiny_run, tiny_store, capsys):
    assert load_tokenizer(tiny_store / "tokenizer.json").encode("\udcff")  # what the shell hands over for byte FF
    assert main(["generate", str(tiny_run), "--prompt", "\udcff", "--tokens", "8", "--temperature", "3"]) == 0
    assert capsys.readouterr().out.startswith("\ufffd")
