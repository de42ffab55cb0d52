"""The published tables load with a short command, and no question is asked of sound data."""

import csv

import pytest

from areca.laws import load

KEYS = ("file", "dataset", "hparams", "warmup", "decay", "param_count", "val")


def _questions(notes):
    """What is said beyond which columns and rows are taken and what is derived."""
    plain = ("columns taken from", "C = 6 N D is used", "D = C / 6 N is used", "are taken: ")
    return [note for note in notes if not any(words in note for words in plain)]


def test_chinchillas_points_need_no_mapping(shared_data):
    o = load([shared_data("laws/epoch_chinchilla/svg_extracted_data.csv")])
    assert len(o) == 245
    assert o.columns["n_params"] == "Model Size"
    assert o.columns["flops"] == "Training FLOP"
    assert o.columns["n_tokens"] == "C / 6 N"
    assert _questions(o.notes) == []


def test_repeated_data_comes_with_its_unique_tokens(shared_data):
    o = load([shared_data("laws/muennighoff/datablations_runs_182_fitted.csv")])
    assert len(o) == 182
    assert o.columns["unique_tokens"] == "unique_tokens_U"
    assert (o.column("unique_tokens") <= o.n_tokens).all()
    assert _questions(o.notes) == []


def test_each_experiment_of_porian_and_others(shared_data):
    path = shared_data("laws/porian/isoflop_points.csv")
    with open(path, newline="") as file:
        experiments = list(dict.fromkeys(tuple(row[k] for k in KEYS) for row in csv.DictReader(file)))
    assert len(experiments) >= 10
    rows = 0
    for experiment in experiments:
        where = [f"{k}={v}" for k, v in zip(KEYS, experiment, strict=True)]
        o = load([path], where=[*where, "loss!="])
        assert (o.columns["n_params"], o.columns["n_tokens"]) == ("n", "t_tokens")
        assert _questions(o.notes) == [], experiment
        rows += len(o)
    assert rows > 1500
    where = ["file=summary_df", "dataset=rw", "hparams=tuned", "loss!="]
    assert _questions(load([path.with_name("optimal_pairs.csv")], n_tokens="t", where=where).notes) == []


def test_different_corpora_in_one_table_are_questioned_and_their_columns_named(shared_data):
    path = shared_data("laws/compute_multipliers/cells_1e19_seed_means.csv")
    o = load([path], loss="heldout7_nll")
    assert len(o) == 15
    (question,) = _questions(o.notes)
    assert "'recipe'" in question
    assert "'corpus'" in question


@pytest.mark.parametrize("unit", ["flops=pf-days", "n_params=M"])
def test_a_slip_in_published_data_is_found(shared_data, tmp_path, unit):
    from areca.errors import DataError

    with open(shared_data("laws/epoch_chinchilla/svg_extracted_data.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    lines = ["Model Size,Training FLOP,loss"]
    for row in rows:
        n, c = float(row["Model Size"]), float(row["Training FLOP"])
        n, c = (n, c / 8.64e19) if unit == "flops=pf-days" else (n / 1e6, c)
        lines.append(f"{n!r},{c!r},{row['loss']}")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"--unit {unit}"):
        load([path])
