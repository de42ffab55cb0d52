import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from areca.errors import DataError
from areca.laws import Observations, load, load_columns

HEADER_U = "n_params,n_tokens,loss,U,series"
ROWS = [(1e4, 2e6, 3.9), (2e4, 1e6, 4.1), (4e4, 3e6, 3.5)]


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def _csv(tmp_path, rows=ROWS, header="n_params,n_tokens,loss"):
    return _write(tmp_path / "runs.csv", "\n".join([header, *(",".join(map(str, r)) for r in rows)]) + "\n")


def test_flops_are_derived_and_said_to_be(tmp_path):
    o = load([_csv(tmp_path)])
    assert list(o.flops) == [6 * n * d for n, d, _ in ROWS]
    assert o.loss.dtype == np.float64
    assert o.notes == ("runs.csv has no FLOPs; C = 6 N D is used.",)
    assert o.columns["flops"] == "6 N D"


def test_tokens_or_parameters_are_derived_from_flops(tmp_path):
    rows = [(n, 6 * n * d, l) for n, d, l in ROWS]
    o = load([_csv(tmp_path, rows, "size,c,l")], n_params="size", flops="c", loss="l")
    assert o.n_tokens == pytest.approx([d for _, d, _ in ROWS])
    assert "D = C / 6 N" in o.notes[0]
    rows = [(d, 6 * n * d, l) for n, d, l in ROWS]
    o = load([_csv(tmp_path, rows, "n_tokens,flops,loss")])
    assert o.n_params == pytest.approx([n for n, _, _ in ROWS])
    assert "N = C / 6 D" in o.notes[0]


def test_the_same_rows_from_every_kind_of_file(tmp_path):
    records = [{"n_params": n, "n_tokens": d, "loss": l, "other": None} for n, d, l in ROWS]
    paths = [
        _csv(tmp_path),
        _write(tmp_path / "a.tsv", "n_params\tn_tokens\tloss\n" + "".join(f"{n}\t{d}\t{l}\n" for n, d, l in ROWS)),
        _write(
            tmp_path / "semicolons.csv", "n_params;n_tokens;loss\r\n" + "".join(f"{n};{d};{l}\r\n" for n, d, l in ROWS)
        ),
        _write(
            tmp_path / "bom.csv",
            "\ufeff" + "n_params,n_tokens,loss\n" + "".join(f'"{n}",{d},{l}\n' for n, d, l in ROWS),
        ),
        _write(tmp_path / "a.jsonl", "".join(json.dumps(r) + "\n" for r in records)),
        _write(tmp_path / "a.json", json.dumps(records)),
        tmp_path / "a.parquet",
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    for path in paths:
        o = load([path])
        assert [(n, d, l) for n, d, l in zip(o.n_params, o.n_tokens, o.loss, strict=True)] == ROWS, path.name
    assert len(load(paths, duplicates="keep")) == 3 * len(paths)
    assert len(load(paths, duplicates="drop")) == 3


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("0", "has 0 in column 'loss'; it must be a positive number"),
        ("-1.5", "has -1.5 in column 'loss'; it must be a positive number"),
        ("nan", "has nan in column 'loss'; it must be a positive number"),
        ("inf", "has inf in column 'loss'; it must be a positive number"),
        ("3,4", "has 4 cells where the header names 3 columns"),
        ("abc", "has 'abc' in column 'loss', which is not a number"),
        ("", "has no value in column 'loss'"),
    ],
)
def test_a_bad_cell_is_named_by_its_line_and_column(tmp_path, cell, said):
    path = _csv(tmp_path, [*ROWS[:2], (4e4, 3e6, cell)])
    with pytest.raises(DataError) as error:
        load([path])
    assert f"{path} line 4 {said}" in str(error.value)


def test_bad_values_in_json_and_parquet_are_named_too(tmp_path):
    path = _write(tmp_path / "a.jsonl", '{"n_params": 1, "n_tokens": 2, "loss": 3}\n{"n_params": 1, "n_tokens": 2}\n')
    with pytest.raises(DataError, match=r"a\.jsonl line 2 has no value in column 'loss'"):
        load([path])
    path = _write(tmp_path / "b.jsonl", '{"n_params": true, "n_tokens": 2, "loss": 3}\n')
    with pytest.raises(DataError, match="which is not a number"):
        load([path])
    pyarrow.parquet.write_table(
        pyarrow.table({"n_params": [1.0, 2.0], "n_tokens": [1, 0], "loss": [3.0, 2.0]}), tmp_path / "a.parquet"
    )
    with pytest.raises(DataError, match=r"a\.parquet row 2 has 0 in column 'n_tokens'"):
        load([tmp_path / "a.parquet"])


def test_missing_doubled_and_twice_mapped_columns_say_what_there_is(tmp_path):
    path = _csv(tmp_path)
    with pytest.raises(
        DataError, match=r"no column 'Loss' \(did you mean 'loss'\?\); its columns are 'n_params', 'n_tokens', 'loss'"
    ):
        load([path], loss="Loss")
    with pytest.raises(DataError, match=r"'n_tokens' of .* is mapped twice"):
        load([path], loss="n_tokens")
    with pytest.raises(
        DataError,
        match=r"no column 'loss'; name it with --loss; it may be 'val' \(its columns: 'n_params', 'n_tokens', 'val'\)",
    ):
        load([_csv(tmp_path, header="n_params,n_tokens,val")])
    with pytest.raises(DataError, match="two of N, D and C and has n_params"):
        load([_csv(tmp_path, header="n_params,steps,loss")])
    with pytest.raises(DataError, match="more than one column 'loss'"):
        load([_csv(tmp_path, [(1, 2, 3, 4)], header="n_params,n_tokens,loss,loss")])
    with pytest.raises(DataError, match="no column 'loss': it has more than one column 'val_loss'"):
        load([_csv(tmp_path, [(1, 2, 3, 4)], header="n_params,n_tokens,val_loss,val_loss")])
    with pytest.raises(DataError, match=r"has n_params; .* D may be 'train_steps' times .* --unit n_tokens=steps,"):
        load([_csv(tmp_path, [(1, 2, 3, 4, 5)], header="n_params,train_steps,batch,context,loss")])


@pytest.mark.parametrize("cell", ["null", "true"])
def test_a_column_without_numbers_is_said_to_be_that(tmp_path, cell):
    path = tmp_path / "runs.json"
    path.write_text(f'[{{"n_params": 1e8, "n_tokens": 1e9, "val_loss": {cell}}}]')
    with pytest.raises(DataError, match=f"no column 'loss': 'val_loss' has no number, as '{cell}' in row 1; name it"):
        load([path])
    path.write_text(f'[{{"n_params": 1e8, "tokens": {cell}, "val_loss": 3}}]')
    with pytest.raises(DataError, match=f"has n_params: 'tokens' has no number, as '{cell}' in row 1; name them"):
        load([path])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"", "is empty"),
        ("b.csv", b"n_params,n_tokens,loss\n", "has no rows"),
        ("c.csv", b"\x89PNG\r\n\x1a\n\x00\xff", "is not text in UTF-8"),
        ("d.csv", b"n_params\x00,loss\n", "holds binary data"),
        ("e.jsonl", b'{"a": \n', "e.jsonl line 1 is not valid JSON ("),
        ("e2.jsonl", b'{"a": 1}\n\n{"a": 1,}\n', "e2.jsonl line 3 is not valid JSON ("),
        ("law.json", b'{"format": 1, "fingerprint": "x", "parametric": {}}', "is a law that `areca fit` wrote"),
        ("plan.json", b'{"best": {}, "budget_flops": 1, "predicted_loss": 2}', "is a plan, and no table of runs"),
        ("f.jsonl", b"[1, 2]\n", "line 1 is '[1, 2]', not an object"),
        ("g.parquet", b"PAR1 not really", "is not a Parquet file"),
        ("h.xlsx", b"PK", "is not a table: give a file that ends in"),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        load([tmp_path / name])
    assert said in str(error.value)
    assert name in str(error.value)


def test_a_missing_file_and_an_empty_directory(tmp_path):
    with pytest.raises(DataError, match=r"none\.csv does not exist"):
        load([tmp_path / "none.csv"])
    with pytest.raises(DataError, match="holds no finished run"):
        load([tmp_path])
    with pytest.raises(DataError, match="nothing to fit"):
        load([])


# Run directories


def _result(path, n, d, loss, **more):
    path.mkdir(parents=True)
    values = {"n_params": n, "n_tokens": d, "flops_6nd": 6 * n * d, "flops_exact": 9 * n * d, "loss": loss, **more}
    (path / "result.json").write_text(json.dumps(values))


def test_run_directories_alone_together_and_as_a_ladder(tmp_path):
    for i, (n, d, l) in enumerate(ROWS):
        _result(tmp_path / "ladder" / "runs" / f"run{i}", n, d, l)
    (tmp_path / "ladder" / "runs" / "half").mkdir()
    (tmp_path / "ladder" / "runs" / "half" / "run.json").write_text("{}")
    o = load([tmp_path / "ladder" / "runs" / "run1"])
    assert (o.flops[0], o.loss[0]) == (9 * 2e4 * 1e6, 4.1)
    assert load([tmp_path / "ladder" / "runs" / "run1"], flops_kind="6nd").flops[0] == 6 * 2e4 * 1e6
    for directory in (tmp_path / "ladder", tmp_path / "ladder" / "runs"):
        o = load([directory])
        assert o.label == ("run0", "run1", "run2")
        assert "half" in o.notes[0]
    runs = [{"name": f"run{i}", "budget_flops": 1e12, "path": f"runs/run{i}"} for i in range(2)]
    runs.append({"name": "later", "budget_flops": 2e12, "path": "runs/later"})
    (tmp_path / "ladder" / "ladder.json").write_text(json.dumps({"budgets_flops": [1e12, 2e12], "runs": runs}))
    o = load([tmp_path / "ladder"])
    assert o.label == ("run0", "run1")
    assert list(o.budget) == [1e12, 1e12]
    assert "later" in o.notes[0]


def _ladder(directory, names):
    for i, name in enumerate(names):
        n, d, l = ROWS[i + ord(names[0]) - ord("a")]
        _result(directory / "runs" / name, n, d, l)
    runs = [{"name": name, "budget_flops": 1e12, "path": f"runs/{name}"} for name in names]
    (directory / "ladder.json").write_text(json.dumps({"budgets_flops": [1e12], "runs": runs}))


def test_of_a_quickstart_the_ladder_is_taken_and_the_planned_run_left_and_said(tmp_path):
    _ladder(tmp_path / "qs" / "ladder", ("a", "b", "c"))
    _result(tmp_path / "qs" / "verify", 9e4, 9e6, 2.0)
    (tmp_path / "qs" / "quickstart.json").write_text("{}")
    o = load([tmp_path / "qs"])
    assert o.label == ("a", "b", "c")
    assert list(o.budget) == [1e12] * 3
    (note,) = o.notes
    assert "is a quickstart: the 3 runs of its ladder are taken" in note
    assert f"the planned run {tmp_path / 'qs' / 'verify'} is left out" in note
    # Named beside it, the planned run is taken.
    assert load([tmp_path / "qs", tmp_path / "qs" / "verify"]).label == ("a", "b", "c", "verify")


def test_families_inside_a_directory_of_runs_are_taken_and_said(tmp_path):
    _ladder(tmp_path / "first", ("a", "b"))
    _ladder(tmp_path / "qs" / "ladder", ("c",))
    (tmp_path / "qs" / "quickstart.json").write_text("{}")
    _result(tmp_path / "single", 9e4, 9e6, 2.0)
    o = load([tmp_path])
    assert sorted(o.label) == ["a", "b", "c", "single"]
    (note,) = o.notes
    assert note == (
        f"1 run of {tmp_path} and 3 runs of {tmp_path / 'first'}, {tmp_path / 'qs' / 'ladder'} are taken together."
    )


def test_a_damaged_ladder_or_result_is_named(tmp_path):
    _result(tmp_path / "a", 1e4, 1e6, 3.0)
    (tmp_path / "ladder.json").write_text('{"runs": 3}')
    with pytest.raises(DataError, match=r"ladder\.json does not list the ladder's runs"):
        load([tmp_path])
    (tmp_path / "a" / "result.json").write_text('{"n_params": 10, "n_tokens": null}')
    with pytest.raises(DataError, match=r"result\.json has no value in column 'n_tokens'"):
        load([tmp_path / "a"])
    (tmp_path / "a" / "result.json").write_text("{")
    with pytest.raises(DataError, match="is not valid JSON"):
        load([tmp_path / "a"])


def test_observations_refuse_what_is_not_positive():
    ones = np.ones(3)
    with pytest.raises(DataError, match=r"loss is nan in row 2; it must be a positive number"):
        Observations(ones, ones, ones, np.array([1, np.nan, 2]))
    with pytest.raises(DataError, match="leaves none"):
        Observations(ones, ones, ones, ones).drop_highest(3)


# Other quantities and groups


def test_other_quantities_and_groups_are_carried(tmp_path):
    path = _csv(tmp_path, [(*r, u, g) for r, u, g in zip(ROWS, (1e6, "", 2e6), "aab", strict=True)], HEADER_U)
    o = load([path], columns={"unique_tokens": "U"}, group="series")
    assert o.group == ("a", "a", "b")
    np.testing.assert_array_equal(o.column("unique_tokens"), [1e6, np.nan, 2e6])
    again = Observations.from_dicts(o.to_dicts(), o.notes, o.columns)
    np.testing.assert_array_equal(again.column("unique_tokens"), o.column("unique_tokens"))
    assert again.group == o.group
    kept = o.select(np.array([False, True, True]))
    assert kept.group == ("a", "b")
    assert kept.column("unique_tokens")[1] == 2e6
    assert list(o.column("loss")) == [3.9, 4.1, 3.5]
    with pytest.raises(DataError, match=r"no column steps; name it with --columns steps=COLUMN \(they have n_params"):
        o.column("steps")


def test_columns_for_other_forms(tmp_path):
    path = _csv(tmp_path, [(1e9, 2e10, 0.0), (2e9, 2e10, 0.4)], "n_params,n_tokens,accuracy")
    c = load_columns([path], ["score", "flops"], {"score": "accuracy"}, ["seed"])
    assert list(c.values) == ["score", "flops"]
    assert list(c.values["score"]) == [0.0, 0.4]
    assert list(c.values["flops"]) == [6 * 1e9 * 2e10, 6 * 2e9 * 2e10]
    assert "C = 6 N D" in c.notes[0]
    with pytest.raises(DataError, match=r"no column 'b_crit'; name it with --columns b_crit=COLUMN \(its columns"):
        load_columns([path], ["b_crit", "flops"], {})
    path.write_text("b_crit,loss\n1e5,\n")
    with pytest.raises(DataError, match=r"line 2 has no value in column 'loss'"):
        load_columns([path], ["b_crit", "loss"], {})


def test_run_directories_tell_what_they_know(tmp_path):
    _result(tmp_path / "a", 1e4, 2e6, 3.9, n_params_total=3e4, steps=500, labels={"unique_tokens": 1e6, "name": "a"})
    config = {
        "model": {"d_model": 32, "n_layers": 2},
        "data": {"context": 64},
        "batch": {"ramp": [[0, 16]]},
        "optimizer": {"learning_rate": 0.01},
        "seed": 0,
    }
    (tmp_path / "a" / "run.json").write_text(json.dumps({"config": config}))
    _result(tmp_path / "b", 2e4, 2e6, 3.5, steps=1000)
    o = load([tmp_path], group="run")
    said = {name: values[0] for name, values in o.others.items()}
    assert said == {
        "unique_tokens": 1e6, "steps": 500, "batch_tokens": 1024, "learning_rate": 0.01, "context": 64, "seed": 0,
        "n_params_total": 3e4, "flops_exact": 18e10, "flops_6nd": 12e10, "d_model": 32, "n_layers": 2,
    }  # fmt: skip
    assert o.columns["flops"] == "flops_exact (exact training FLOPs)"
    assert load([tmp_path], flops_kind="6nd").columns["flops"] == "flops_6nd (6 N D)"
    assert o.others["batch_tokens"][1] == 2000  # the mean, where the batches are not known
    assert o.group == ("a", "b")
    with pytest.raises(DataError, match=r"b.result\.json has no value in column 'learning_rate'"):
        load_columns([tmp_path], ["learning_rate", "n_params"], {})
    assert list(load_columns([tmp_path / "a"], ["learning_rate"], {}).values["learning_rate"]) == [0.01]
