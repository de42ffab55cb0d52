"""`areca fit` on a table that can't be fitted: one sentence with file, row, column, value and way out; exit code 2."""

import numpy as np
import pytest

from areca.cli.main import main

N = np.repeat([1e7, 3e7, 1e8, 3e8], 3)
D = np.tile([5e8, 2e9, 8e9], 4)
ROWS = [[n, d, 6 * n * d, 1.69 + 406.4 / n**0.34 + 410.7 / d**0.28] for n, d in zip(N, D, strict=True)]
HEADER = ["n_params", "n_tokens", "flops", "loss"]


def _table(tmp_path, changes=(), header=HEADER):
    rows = [[repr(float(cell)) for cell in row] for row in ROWS]
    for row, column, cell in changes:
        rows[row][column] = cell
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(",".join(row) for row in [header, *rows]) + "\n")
    return path


def _refused(capsys, argv):
    """The message, which is one sentence on one line."""
    assert main(["fit", *map(str, argv)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("areca fit: ")
    assert error.count("\n") == 1
    assert error.rstrip().endswith(".")
    return error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(2, 3, "0")], ["line 4", "has 0 in column 'loss'", "must be a positive number"]),
        ([(2, 0, "0.0")], ["line 4", "has 0.0 in column 'n_params'"]),
        ([(0, 3, "nan")], ["line 2", "has nan in column 'loss'"]),
        ([(0, 1, "-2e9")], ["line 2", "has -2e9 in column 'n_tokens'"]),
        ([(1, 3, "inf")], ["line 3", "has inf in column 'loss'"]),
        ([(1, 3, "")], ["line 3", "has no value in column 'loss'", "--where 'loss!='"]),
        ([(1, 1, "many")], ["line 3", "has 'many' in column 'n_tokens'", "not a number", "correct it"]),
        ([(1, 3, "3k")], ["line 3", "has '3k' in column 'loss'", "two ways"]),
        ([(5, 2, "1e3")], ["mixes units", "line 7", "line 2"]),
        ([(5, 3, "88.5")], ["line 7", "88.5", "'loss'", "--unit loss=nats"]),
        ([(i, c, repr(float(ROWS[0][c]))) for i in (1, 2) for c in range(4)], ["2 of 12 rows repeat", "line 3"]),
        ([(i, 2, repr(float(ROWS[i][2] / 8.64e19))) for i in range(12)], ["'flops'", "--unit flops=pf-days"]),
    ],
)
def test_cells(capsys, tmp_path, changes, words):
    path = _table(tmp_path, changes)
    error = _refused(capsys, [path])
    for word in [*words, str(path)]:
        assert word in error


def test_rows_without_a_loss_are_left_out_when_asked(capsys, tmp_path):
    path = _table(tmp_path, [(1, 3, "")])
    assert main(["fit", str(path), "--where", "loss!=", "--bootstrap", "20"]) == 0
    assert "11 of 12 rows of runs.csv are taken: loss!=." in capsys.readouterr().out


def test_one_distinct_n(capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("n_params,n_tokens,loss\n" + "".join(f"1e8,{i}e9,{3 - i / 10}\n" for i in range(1, 9)))
    assert "at least 3 distinct values of" in _refused(capsys, [path])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--loss", "los"], ["no column 'los' (did you mean 'loss'?)", "its columns are 'n_params',"]),
        (["--loss", "flops"], ["column 'flops' of", "mapped twice, as loss and as flops", "map each column once"]),
        (["--columns", "steps=S"], ["no column 'S'"]),
        (["--columns", "steps"], ["--columns is 'steps'; write it as NAME=COLUMN."]),
        (["--columns", "steps=a", "steps=b"], ["--columns names steps twice, 'a' and 'b'"]),
        (["--group", "series"], ["no column 'series' to group by"]),
        (["--unit", "flops=parsecs"], ["'parsecs' is not a unit of flops", "it can be flops, pf-days,"]),
        (["--unit", "los=nats"], ["'los' has no units (did you mean 'loss'?)"]),
        (["--unit", "tokens"], ["--unit is 'tokens'; write it as QUANTITY=UNIT."]),
        (["--unit", "tokens=sequences"], ["in sequences needs", "--unit n_tokens=sequences:NUMBER"]),
        (["--where", "series=a"], ["no column 'series'"]),
        (["--where", "series"], ["--where is 'series'; write it as COLUMN=VALUE or COLUMN!=VALUE."]),
        (["--where", "loss=4"], ["no row where loss=4; its column 'loss' has "]),
        (["--duplicates", "maybe"], ["--duplicates"]),
    ],
)
def test_options(capsys, tmp_path, options, words):
    error = _refused(capsys, [_table(tmp_path), *options])
    for word in words:
        assert word in error


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"\x89PNG\r\n\x1a\n\x00\xff", ["not text in UTF-8"]),
        ("b.csv", b"n_params\x00,loss\n", ["holds binary data"]),
        ("c.parquet", b"PAR1 not really", ["is not a Parquet file"]),
        ("d.npz", b"PK", ["is not a table: give a file that ends in .csv"]),
        ("e.csv", b"", ["is empty"]),
        ("f.csv", b"n_params,n_tokens,loss\n1e8,1e9,3,1\n", ["line 2 has 4 cells where the header names 3 columns"]),
    ],
)
def test_files(capsys, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    error = _refused(capsys, [tmp_path / name])
    for word in [*words, name]:
        assert word in error


def test_a_plan_sends_doubts_about_units_to_fit(capsys, tmp_path):
    path = _table(tmp_path, [(i, 2, repr(float(ROWS[i][2] / 8.64e19))) for i in range(12)])
    assert main(["plan", str(path), "--flops", "1e20", "--vocab-size", "1000", "--context", "64"]) == 2
    error = capsys.readouterr().err
    assert "--unit flops=pf-days" in error
    assert "options of `areca fit`" in error
