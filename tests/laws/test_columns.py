"""Which column is which quantity, and in which unit."""

import math

import numpy as np
import pytest

from areca.errors import ConfigError, DataError
from areca.laws import load, load_columns

ROWS = [(1e7, 2e9, 3.9), (2e7, 1e9, 4.1), (4e7, 3e9, 3.5)]


def _table(tmp_path, header, rows=ROWS, name="runs.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *(",".join(map(str, r)) for r in rows)]) + "\n")
    return path


def _is_rows(o):
    for got, i in ((o.n_params, 0), (o.n_tokens, 1), (o.loss, 2)):
        np.testing.assert_allclose(got, [row[i] for row in ROWS], rtol=1e-12)


@pytest.mark.parametrize(
    "header",
    [
        "params,tokens,val_loss",
        "N,D,eval/loss",
        "Model Size,Training tokens,Validation Loss",
        "model_size,train_tokens,final_loss",
        "config.n_params,summary.tokens_seen,summary.eval/loss",
        "N_nonembed,num_tokens,valid_loss",
        "numParams,trainTokens,valLoss",
    ],
)
def test_usual_names_are_taken_and_said(tmp_path, header):
    o = load([_table(tmp_path, header)])
    _is_rows(o)
    n, d, l = header.split(",")
    assert o.notes[0] == f"columns taken from runs.csv by their names: N is {n!r}, D is {d!r}, the loss is {l!r}."
    assert o.columns["n_params"] == n


def test_the_surer_name_wins_and_equally_sure_ones_are_listed(tmp_path):
    rows = [(n, n + 5e6, d, l) for n, d, l in ROWS]
    _is_rows(load([_table(tmp_path, "non_embedding_params,params,tokens,loss", rows)]))
    with pytest.raises(DataError, match=r"has n_tokens; .* N may be 'params' or 'model_size'"):
        load([_table(tmp_path, "params,model_size,tokens,loss", rows)])
    same = [(n, n, d, l) for n, d, l in ROWS]
    _is_rows(load([_table(tmp_path, "params,model_size,tokens,loss", same)]))
    losses = [(*row, row[2] + 0.1) for row in ROWS]
    with pytest.raises(DataError, match=r"no column 'loss'; .*; it may be 'val_loss' or 'test_loss'"):
        load([_table(tmp_path, "params,tokens,val_loss,test_loss", losses)])
    o = load([_table(tmp_path, "params,tokens,loss,eval/loss", losses)])
    assert "if 'eval/loss' is the held-out one, say --loss eval/loss" in o.notes[1]
    assert "is a training loss" in load([_table(tmp_path, "params,tokens,train_loss")]).notes[1]


def test_what_is_left_out_or_may_be_meant_is_said(tmp_path):
    rows = [(*row, 1e18, 2e18, cell) for row, cell in zip(ROWS, ("n/a", 0.3, ""), strict=True)]
    o = load([_table(tmp_path, "n_params,n_tokens,loss,fwd_flops,all_flops,score", rows)])
    assert o.notes[0].endswith("line 2 has 'n/a' in column 'score', which is not a number; correct it.")
    assert o.notes[1] == (
        "runs.csv has no FLOPs; C = 6 N D is used; C may be 'fwd_flops' or 'all_flops' (--flops COLUMN)."
    )
    rows = [(*row, cell) for row, cell in zip(ROWS, ("nan", 0.3, ""), strict=True)]
    o = load([_table(tmp_path, "n_params,n_tokens,loss,score", rows)])
    np.testing.assert_array_equal(o.column("score"), [np.nan, 0.3, np.nan])


def test_a_column_of_words_is_no_quantity(tmp_path):
    rows = [("kaplan", *row) for row in ROWS]
    _is_rows(load([_table(tmp_path, "param_count,n,tokens,loss", rows)]))


@pytest.mark.parametrize("column", ["total_params", "n_params_total", "params_total", "Total Params"])
def test_a_count_of_all_parameters_is_n_where_there_is_no_other(tmp_path, column):
    path = _table(tmp_path, f"{column},tokens,loss")
    o = load([path])
    _is_rows(o)
    assert o.columns["n_params"] == column
    assert o.n_counts == "total"
    assert "by its name counts embeddings" in o.notes[2]
    assert len(load([path], n_params=column, units={"n_params": "params"}).notes) == 2
    # Beside D and C it is N too, and N is not C / 6 D.
    rows = [(n, d, 8 * n * d, l) for n, d, l in ROWS]
    np.testing.assert_array_equal(load([_table(tmp_path, f"{column},tokens,flops,loss", rows)]).n_params, o.n_params)
    # Its unit may be named by either name.
    rows = [(n / 1e6, d, l) for n, d, l in ROWS]
    _is_rows(load([_table(tmp_path, f"{column},tokens,loss", rows)], units={"n_params_total": "M"}))


@pytest.mark.parametrize(
    "names", ["non_embedding_params,total_params", "n_params,n_params_total", "params,total_params"]
)
def test_n_is_without_embeddings_where_both_counts_are_there(tmp_path, names):
    o = load([_table(tmp_path, f"{names},tokens,loss", [(n, n + 5e6, d, l) for n, d, l in ROWS])])
    _is_rows(o)
    assert o.n_counts == "non-embedding"
    n, total = names.split(",")
    assert f"N is {n!r} and not {total!r}, which counts embeddings too (--n-params {total})." in o.notes


def test_two_unsure_counts_are_not_settled_by_a_total(tmp_path):
    path = _table(tmp_path, "params,model_size,total_params,tokens,loss", [(n, 2 * n, 3 * n, d, l) for n, d, l in ROWS])
    with pytest.raises(DataError, match="N may be 'params' or 'model_size' or 'total_params'"):
        load([path])


@pytest.mark.parametrize("column", ["flops_exact", "exact_flops", "Exact FLOPs"])
def test_exact_flops_are_c_and_stay_exact(tmp_path, column):
    rows = [(n, d, 7 * n * d, l) for n, d, l in ROWS]
    o = load([_table(tmp_path, f"n_params,tokens,{column},loss", rows)])
    np.testing.assert_allclose(o.flops, [row[2] for row in rows], rtol=1e-12)
    assert o.columns["flops"] == column
    assert o.flops_counts == "exact"


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        ("1.3B", 1.3e9),
        ("70m", 7e7),
        ("7e9", 7e9),
        ('"1,024,000,000"', 1.024e9),
        ("1 024 000 000", 1.024e9),
        ("2 T", 2e12),
    ],
)
def test_counts_as_people_write_them(tmp_path, cells, value):
    o = load([_table(tmp_path, "n_params,n_tokens,loss", [(cells, "1e11", "3.1")])])
    assert o.n_params[0] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("cell", ['"3,456"', "3k"])
def test_a_loss_that_can_be_read_in_two_ways_is_refused(tmp_path, cell):
    with pytest.raises(DataError, match=r"line 2 has '.*' in column 'loss', which can be read in two ways"):
        load([_table(tmp_path, "n_params,n_tokens,loss", [("1e9", "1e11", cell)])])


@pytest.mark.parametrize(
    ("header", "scale", "said"),
    [
        ("params (M),tokens (B),loss", (1e6, 1e9), "'params (M)' of runs.csv is read in M"),
        ("params_M,tokens_B,loss", (1e6, 1e9), "'tokens_B' of runs.csv is read in B"),
        ("Model Size [millions],tokens in billions,loss", (1e6, 1e9), "'Model Size [millions]' of runs.csv"),
    ],
)
def test_units_in_the_names_of_columns(tmp_path, header, scale, said):
    rows = [(n / scale[0], d / scale[1], l) for n, d, l in ROWS]
    n, d, _ = header.split(",")
    o = load([_table(tmp_path, header, rows)], n_params=n, n_tokens=d)
    _is_rows(o)
    assert any(said in note for note in o.notes)
    assert o.columns["n_params"].startswith(f"{n} (")


def test_a_name_that_promises_another_unit_than_the_cells_is_refused(tmp_path):
    path = _table(tmp_path, "params (M),tokens,loss")
    with pytest.raises(DataError, match=r"4e\+07 in column 'params \(M\)', too much .* --unit n_params=params"):
        load([path])
    _is_rows(load([path], units={"params": "params"}))


def test_units_of_the_loss(tmp_path):
    rows = [(n, d, l / math.log(2)) for n, d, l in ROWS]
    _is_rows(load([_table(tmp_path, "n_params,n_tokens,loss", rows)], units={"loss": "bits-per-token"}))
    # 4.4 bytes a token: bits a byte are bits a token over 4.4.
    rows = [(n, d, l / math.log(2) / 4.4) for n, d, l in ROWS]
    path = _table(tmp_path, "n_params,n_tokens,bpb", rows)
    with pytest.raises(
        DataError, match=r"'bpb' .* in bits-per-byte needs bytes of text in a token .*=bits-per-byte:NUM"
    ):
        load([path])
    _is_rows(load([path], units={"loss": "bits-per-byte:4.4"}))
    path = _table(tmp_path, "n_params,n_tokens,bpb,bytes_per_token", [(*row, 4.4) for row in rows])
    _is_rows(load([path]))
    rows = [(n, d, math.exp(l)) for n, d, l in ROWS]
    _is_rows(load([_table(tmp_path, "n_params,n_tokens,val_ppl", rows)]))


def test_tokens_in_sequences_and_steps(tmp_path):
    rows = [(n, d / 2048, l) for n, d, l in ROWS]
    path = _table(tmp_path, "n_params,sequences,loss", rows)
    _is_rows(load([path], n_tokens="sequences", units={"tokens": "sequences:2048"}))
    with pytest.raises(DataError, match=r"in sequences needs T, tokens in a sequence .*--columns context=COLUMN"):
        load([path], n_tokens="sequences", units={"tokens": "sequences"})
    path = _table(tmp_path, "n_params,sequences,loss,seq_len", [(*row, 2048) for row in rows])
    _is_rows(load([path], n_tokens="sequences", units={"tokens": "sequences"}))
    # Steps of a batch that is itself in sequences.
    rows = [(n, d / (2048 * 256), l, 256, 2048) for n, d, l in ROWS]
    path = _table(tmp_path, "n_params,iters,loss,batch,context", rows)
    units = {"tokens": "steps", "batch_tokens": "sequences"}
    _is_rows(load([path], n_tokens="iters", columns={"batch_tokens": "batch"}, units=units))


def test_budgets_are_in_the_unit_of_the_flops(tmp_path):
    rows = [(n, 6 * n * d / 8.64e19, l, 1.5) for n, d, l in ROWS]
    o = load([_table(tmp_path, "n_params,compute_pf_days,loss,budget_flops", rows)], units={"flops": "pf-days"},
             flops="compute_pf_days")  # fmt: skip
    _is_rows(o)
    assert list(o.budget) == [1.5 * 8.64e19] * 3


@pytest.mark.parametrize(
    ("units", "said"),
    [
        (
            {"flops": "pfdays"},
            "'pfdays' is not a unit of flops (did you mean 'pf-days'?); it can be flops, pf-days,",
        ),
        ({"speed": "B"}, "'speed' has no units; n_params,"),
        ({"n_tokens": "sequences:x"}, "'x' can't be used; give the context as a positive number"),
        ({"n_tokens": "B:3"}, "'3' can't be used; B takes no number"),
    ],
)
def test_units_that_there_are_not(tmp_path, units, said):
    with pytest.raises(ConfigError) as error:
        load([_table(tmp_path, "n_params,n_tokens,loss")], units=units)
    assert said in str(error.value)


def test_scores_of_zero_and_in_percent(tmp_path):
    rows = [(1e20, 0.0), (1e21, 40.0)]
    path = _table(tmp_path, "flops,accuracy", rows)
    c = load_columns([path], ["flops", "score"], {}, units={"score": "percent"})
    assert list(c.values["score"]) == [0.0, 0.4]


def test_a_mapping_beside_run_directories_is_the_tables(tmp_path):
    (tmp_path / "run").mkdir()
    result = '{"n_params": 1e6, "n_tokens": 1e8, "flops_exact": 6e14, "loss": 3.0, "train_loss_last": 2.5}'
    (tmp_path / "run" / "result.json").write_text(result)
    table = _table(tmp_path, "n_params,n_tokens,final")
    assert len(load([tmp_path / "run", table], loss="final")) == 4
    assert load([tmp_path / "run"], loss="train_loss_last").loss[0] == 2.5
    with pytest.raises(DataError, match=r"run has no column 'final'"):
        load([tmp_path / "run"], loss="final")
