"""A column's name that tells a unit sets it, or is asked about; scores are shares of 1 or are refused."""

import math

import numpy as np
import pytest

from areca.cli.main import main
from areca.errors import DataError
from areca.laws import fit, load, load_columns
from areca.laws.forms.declared import SCORE
from areca.laws.reading.names import bare, told

N = np.repeat([1e7, 3e7, 1e8, 3e8], 4)
D = np.tile([1e9, 3e9, 1e10, 3e10], 4)
C = 6 * N * D
L = 1.69 + 406.4 / N**0.34 + 410.7 / D**0.28
BYTES, CONTEXT = 4.4, 2048


def _table(tmp_path, columns):
    path = tmp_path / "runs.csv"
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(str(v) for v in row) for row in rows)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("loss_nats", L),
        ("bits", L / math.log(2)),
        ("loss_bits", L / math.log(2)),
        ("Loss (bits)", L / math.log(2)),
        ("eval/bitsPerToken", L / math.log(2)),
        ("bpt", L / math.log(2)),
        ("perplexity", np.exp(L)),
        ("eval_ppl", np.exp(L)),
        ("valppl", np.exp(L)),
        ("log_perplexity", L),
        ("val_loss", L),
    ],
)
def test_a_loss_is_read_in_the_unit_of_its_name(tmp_path, name, values):
    o = load([_table(tmp_path, {"n_params": N, "n_tokens": D, name: values})], loss=name)
    np.testing.assert_allclose(o.loss, L, rtol=1e-12)
    said = any("as its name says (--unit loss=nats if it is not)" in note for note in o.notes)
    assert said == (values is not L)


@pytest.mark.parametrize("name", ["bpb", "bits_per_byte", "val_loss_bpb", "eval/bitsPerByte", "loss (bits/byte)"])
def test_bits_a_byte_ask_for_the_bytes_of_a_token(tmp_path, name):
    path = _table(tmp_path, {"n_params": N, "n_tokens": D, name: L / math.log(2) / BYTES})
    with pytest.raises(DataError, match=r"needs bytes of text in a token to become nats; give it as --unit loss=b"):
        load([path], loss=name)
    o = load([path], loss=name, units={"loss": f"bits-per-byte:{BYTES}"})
    np.testing.assert_allclose(o.loss, L, rtol=1e-12)


def test_bits_so_few_that_they_may_be_of_bytes_are_asked_about(tmp_path):
    path = _table(tmp_path, {"n_params": N, "n_tokens": D, "bits": L / math.log(2) / BYTES})
    with pytest.raises(DataError, match=r"--unit loss=bits-per-token or --unit loss=bits-per-byte:NUMBER"):
        load([path], loss="bits")
    o = load([path], loss="bits", units={"loss": f"bits-per-byte:{BYTES}"})
    np.testing.assert_allclose(o.loss, L, rtol=1e-12)


@pytest.mark.parametrize("name", ["bpc", "bits_per_char", "word_perplexity", "byte_perplexity", "nats_per_byte"])
def test_losses_of_other_things_than_tokens_are_asked_about(tmp_path, name):
    path = _table(tmp_path, {"n_params": N, "n_tokens": D, name: L})
    with pytest.raises(DataError, match=rf"'{name}' of .* is by its name .*--unit loss="):
        load([path], loss=name)
    assert load([path], loss=name, units={"loss": "nats"}).loss[0] == L[0]


@pytest.mark.parametrize(
    ("quantity", "name", "values"),
    [
        ("flops", "pf_days", C / 8.64e19),
        ("flops", "petaflop_days", C / 8.64e19),
        ("flops", "compute (petaflop/s-days)", C / 8.64e19),
        ("flops", "exaflops", C / 1e18),
        ("flops", "EFLOPs", C / 1e18),
        ("flops", "training_zettaflops", C / 1e21),
        ("flops", "flops_1e18", C / 1e18),
        ("n_tokens", "tokens_b", D / 1e9),
        ("n_tokens", "billions", D / 1e9),
        ("n_tokens", "billions_of_tokens", D / 1e9),
        ("n_tokens", "tokens (1e9)", D / 1e9),
        ("n_tokens", "Btokens", D / 1e9),
        ("n_params", "params_m", N / 1e6),
        ("n_params", "millions", N / 1e6),
        ("n_params", "paramsM", N / 1e6),
        ("n_params", "params in millions", N / 1e6),
    ],
)
def test_counts_are_read_in_the_unit_of_their_name(tmp_path, quantity, name, values):
    columns = {"n_params": N, "n_tokens": D, "flops": C, "loss": L}
    path = _table(tmp_path, {name if k == quantity else k: values if k == quantity else v for k, v in columns.items()})
    o = load([path], **{quantity: name})
    np.testing.assert_allclose(o.column(quantity), columns[quantity], rtol=1e-12)
    assert any(f"{name!r} of runs.csv is read in" in note and "as its name says" in note for note in o.notes)
    if name.lower() not in ("billions", "millions"):  # which say nothing of what they count
        np.testing.assert_allclose(load([path]).column(quantity), columns[quantity], rtol=1e-12)


def test_sequences_by_name_are_turned_with_the_context_or_asked_about(tmp_path):
    columns = {"n_params": N, "train_sequences": D / CONTEXT, "loss": L}
    path = _table(tmp_path, columns)
    with pytest.raises(DataError, match=r"in sequences needs T, .*--unit n_tokens=sequences:NUMBER"):
        load([path], n_tokens="train_sequences")
    path = _table(tmp_path, columns | {"seq_len": np.full(len(N), CONTEXT)})
    np.testing.assert_allclose(load([path], n_tokens="train_sequences").n_tokens, D, rtol=1e-12)
    c = load_columns([path], ["n_tokens", "loss"], {"n_tokens": "train_sequences"})
    np.testing.assert_allclose(c.values["n_tokens"], D, rtol=1e-12)


@pytest.mark.parametrize(
    ("quantity", "name"),
    [
        ("flops", "gpu_hours"), ("flops", "tflops/s"), ("flops", "flops_per_token"), ("flops", "flops_1e20"),
        ("n_tokens", "epochs"), ("n_tokens", "train_gb"), ("n_tokens", "tokens_per_param"),
        ("n_tokens", "sequences (M)"), ("n_params", "model_size_mb"),
    ],
)  # fmt: skip
def test_names_that_tell_of_something_else_are_asked_about(tmp_path, quantity, name):
    columns = {"n_params": N, "n_tokens": D, "flops": C, "loss": L}
    path = _table(tmp_path, {name if k == quantity else k: v for k, v in columns.items()})
    with pytest.raises(DataError, match="is by its name"):
        load([path], **{quantity: name})
    plain = {"n_params": "params", "n_tokens": "tokens", "flops": "flops"}[quantity]
    assert load([path], **{quantity: name}, units={quantity: plain}).column(quantity)[0] == columns[quantity][0]


def test_names_that_tell_no_unit():
    plain = {
        "n_params": ["n_params", "N", "params", "Model Size", "non_embedding_params"],
        "n_tokens": ["tokens", "num_input_tokens_seen", "D", "tokens_seen", "train_tokens"],
        "flops": ["C", "compute", "total_flos", "training_flop"],
        "batch_tokens": ["tokens_per_step", "batch_size_tokens"],
        "loss": ["loss", "val_loss", "final/eval/loss", "nll"],
        "score": ["accuracy", "mmlu"],
    }
    for quantity, names in plain.items():
        for name in names:
            assert told(quantity, name) == told("seed", "seed"), name
    # A throughput is not a total, and a quantizer's bits are no loss, unless they are mapped.
    assert bare("tflops") == "tflops"
    assert bare("bits") == "bits"


def _scores(scale):
    # Owen's logistic curve in ln C; every (C, score) of another N and D is another run.
    return np.round(scale * (0.25 + 0.65 / (1 + (1e18 / C) ** 0.6)), 6)


@pytest.mark.parametrize("name", ["score", "accuracy"])
def test_scores_in_percent_are_refused_with_the_option_that_reads_them(tmp_path, capsys, name):
    path = _table(tmp_path, {"n_params": N, "n_tokens": D, name: _scores(100)})
    assert main(["fit", str(path), "--form", "score"]) == 2
    error = capsys.readouterr().err
    assert f"line 2 has {_scores(100)[0]:g} in column {name!r}" in error
    assert "say --unit score=percent" in error
    c = load_columns([path], ["flops", "score"], {}, units={"score": "percent"})
    np.testing.assert_allclose(c.values["score"], _scores(1), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "values", "units", "said"),
    [
        ("score", [0.2, 0.5, 75.0], {}, "line 4 has 75 in column 'score', beside 0.5 in the median"),
        ("score", [20.0, 50.0, 750.0], {}, "a score is at most 1, or 100 in percent"),
        ("score", [20.0, 50.0, 101.0], {"score": "percent"}, "line 4 has 101 .* 100 in percent"),
        ("score", [0.2, -0.1, 0.5], {}, "line 3 has -0.1 .* not below 0"),
        ("score", [20.0, -1.0, 50.0], {"score": "percent"}, "line 3 has -1 .* not below 0"),
        ("score", [0.2, 0.5, 1.5], {"score": "share"}, "line 4 has 1.5"),
        ("accuracy (%)", [0.2, 0.5, 0.9], {}, "--unit score=share or --unit score=percent"),
    ],
)
def test_scores_outside_their_range_are_refused(tmp_path, name, values, units, said):
    path = _table(tmp_path, {"flops": C[:3], name: values})
    with pytest.raises(DataError, match=said):
        load_columns([path], ["flops", "score"], {"score": name}, units=units)


@pytest.mark.parametrize(
    ("name", "values", "units", "read"),
    [
        ("score", [0.0, 0.5, 1.0], {}, [0.0, 0.5, 1.0]),
        ("score", [0.0, 50.0, 100.0], {"score": "percent"}, [0.0, 0.5, 1.0]),
        ("acc_pct", [0.0, 50.0, 100.0], {}, [0.0, 0.5, 1.0]),
        ("accuracy (%)", [0.0, 50.0, 100.0], {}, [0.0, 0.5, 1.0]),
        ("score", [-0.02, 0.1, 0.5], {"score": "share"}, [-0.02, 0.1, 0.5]),
    ],
)
def test_scores_at_the_ends_of_their_range_are_read(tmp_path, name, values, units, read):
    path = _table(tmp_path, {"flops": C[:3], name: values})
    c = load_columns([path], ["flops", "score"], {"score": name}, units=units)
    np.testing.assert_allclose(c.values["score"], read, rtol=1e-12)


def test_shares_declared_as_percent_are_asked_about(tmp_path):
    path = _table(tmp_path, {"flops": C[:3], "score": [0.2, 0.5, 0.9]})
    c = load_columns([path], ["flops", "score"], {}, units={"score": "percent"})
    assert any("at most 0.9 percent: if they are shares of 1, leave out --unit score=percent" in n for n in c.notes)


def test_a_score_that_a_law_of_the_loss_does_not_need_is_left_out_and_said(tmp_path):
    o = load([_table(tmp_path, {"n_params": N, "n_tokens": D, "loss": L, "score": _scores(100)})])
    assert "score" not in o.others
    assert any(note.startswith("column 'score' is left out") for note in o.notes)


def test_scores_in_percent_are_refused_from_python_too():
    with pytest.raises(DataError, match=r"score is 25.3 in row 2, and a score is a share of 1"):
        fit(SCORE, {"flops": C[:6], "score": [0.25, 25.3, 26, 27, 28, 29]})
