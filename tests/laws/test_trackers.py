"""Runs as Weights & Biases and TensorBoard leave them."""

import csv
import json
import math

import pytest

from areca.errors import DataError
from areca.laws import load, load_columns

RUNS = [("small", 1e6, 2e8, 3.9), ("middle", 4e6, 4e8, 3.5), ("large", 1.6e7, 8e8, 3.2)]


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _is_runs(observations, rel=1e-12):
    return sorted(
        zip(observations.label, observations.n_params, observations.n_tokens, observations.loss, strict=True)
    ) == [(name, pytest.approx(n), pytest.approx(d), pytest.approx(l, rel=rel)) for name, n, d, l in sorted(RUNS)]


# Weights & Biases


@pytest.mark.parametrize("prefixes", [("", ""), ("config.", "summary.")])
def test_the_runs_table_of_wandb_needs_no_mapping(tmp_path, prefixes):
    config, summary = prefixes
    header = f'"Name","State","Created","{config}n_params","{config}lr","{summary}train/tokens","{summary}eval/loss"'
    rows = [f'"{name}","finished","2026-01-01","{n:.0f}","0.01","{d:.0f}","{l}"' for name, n, d, l in RUNS]
    rows.insert(1, '"broken","crashed","2026-01-02","9000000","0.01","100","8.1"')
    rows.insert(2, '"going","running","2026-01-02","9000000","0.01","",""')
    o = load([_write(tmp_path / "export.csv", "\n".join([header, *rows]))])
    assert _is_runs(o)
    assert list(o.column("learning_rate")) == [0.01] * 3
    assert "2 of 5 runs of export.csv are not finished and are left out." in o.notes
    assert any("the loss is" in note and "eval/loss" in note for note in o.notes)


def test_a_runs_table_without_a_finished_run_is_refused(tmp_path):
    path = _write(tmp_path / "export.csv", "Name,State,n_params,tokens,loss\na,running,1,2,3\n")
    with pytest.raises(DataError, match=r"export\.csv has no run in State finished"):
        load([path])


def test_the_export_that_the_guide_of_wandb_writes(tmp_path):
    rows = [
        {
            "summary": {"eval/loss": l, "train": {"tokens": d}, "grad": math.nan, "_step": 9},
            "config": {"model": {"n_params": n}, "lr": 0.01},
            "name": name,
        }
        for name, n, d, l in RUNS
    ]
    with open(tmp_path / "project.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["", "summary", "config", "name"])
        writer.writeheader()
        writer.writerows({"": str(i), **{k: str(v) for k, v in row.items()}} for i, row in enumerate(rows))
    o = load([tmp_path / "project.csv"])
    assert _is_runs(o)
    assert list(o.column("learning_rate")) == [0.01] * 3
    text = (tmp_path / "project.csv").read_text().replace("3.5", "nan")
    with pytest.raises(DataError, match=r"project\.csv line 3 has no value in column 'eval/loss'"):
        load([_write(tmp_path / "project.csv", text)])
    with pytest.raises(DataError, match=r"line 2 has no dictionary in column 'summary'"):
        load([_write(tmp_path / "a.csv", "name,summary,config\nx,__import__('os'),{}\n")])


def test_a_panels_export_gives_the_last_value_of_each_run(tmp_path):
    names = [f"{name} - {metric}" for name, *_ in RUNS for metric in ("eval/loss", "n_params")]
    header = ["tokens", *(f'"{c}{end}"' for c in names for end in ("", "__MIN", "__MAX"))]
    lines = [",".join(header)]
    for at in (1e8, 2e8, 4e8, 8e8):  # a run ends where its cells do; losses fall to the final one
        cells = [f"{at:.0f}"]
        for _, n, d, l in RUNS:
            loss = "" if at > d else f"{l * (d / at) ** 0.1!r}"
            cells += [loss] * 3 + ["" if at > d else f"{n:.0f}"] * 3
        lines.append(",".join(cells))
    o = load([_write(tmp_path / "history.csv", "\n".join(lines))])
    assert _is_runs(o)
    assert "the last values of its 3 runs are taken" in o.notes[0]


def test_a_panels_export_without_sizes_says_what_to_export(tmp_path):
    text = "Step,a - eval/loss,a - eval/loss__MIN,a - eval/loss__MAX\n10,3.1,3.1,3.1\n"
    path = _write(tmp_path / "history.csv", text)
    with pytest.raises(DataError, match=r"history\.csv needs two of N, D and C .* export the runs table"):
        load([path])
    c = load_columns([path], ["steps", "loss"], {})
    assert (c.label, c.values["steps"][0], c.values["loss"][0]) == (("a",), 10, 3.1)


def _wandb_run(directory, name, n, d, l):
    files = directory / name / "files"
    _write(
        files / "config.yaml",
        "_wandb:\n    value:\n        cli_version: 0.31.0\n"
        f"model:\n    value:\n        n_layers: 2\n        n_params: {n:.0f}\n"
        "optimizer:\n    desc: null\n    value:\n        lr: 1e-3\n",
    )
    summary = {"_step": 99, "_runtime": 5.5, "eval/loss": l, "train": {"tokens": d}, "grad": {"_type": "histogram"}}
    _write(files / "wandb-summary.json", json.dumps(summary))


def test_directories_of_wandb(tmp_path):
    for name, n, d, l in RUNS:
        _wandb_run(tmp_path / "wandb", name, n, d, l)
    (tmp_path / "wandb" / "latest-run").symlink_to("large")
    o = load([tmp_path / "wandb"])
    assert _is_runs(o)
    assert list(o.column("n_layers")) == [2, 2, 2]
    assert list(o.column("learning_rate")) == [1e-3] * 3  # text to YAML, which wants 1.0e-3
    assert load([tmp_path / "wandb" / "small"]).label == ("small",)
    assert load([tmp_path / "wandb" / "small" / "files"]).label == ("small",)
    _write(tmp_path / "wandb" / "offline-run-1" / "run-1.wandb", "")
    assert "1 of 4 runs" in load([tmp_path / "wandb"]).notes[0]


def test_damaged_directories_of_wandb(tmp_path):
    _write(tmp_path / "offline-run-1" / "run-1.wandb", "")
    with pytest.raises(DataError, match=r"1 of 1 runs .*/wandb-summary\.json.*`wandb sync`"):
        load([tmp_path])
    summary = _write(tmp_path / "run-2" / "files" / "wandb-summary.json", "{")
    with pytest.raises(DataError, match=r"run-2/files/wandb-summary\.json is not valid JSON"):
        load([tmp_path])
    summary.write_text('{"eval/loss": NaN, "tokens": 1e9, "n_params": 1e6}')
    with pytest.raises(DataError, match=r"wandb-summary\.json has nan in column 'eval/loss'; it must be a positive"):
        load([tmp_path])
    _write(tmp_path / "run-2" / "files" / "config.yaml", "a: [")
    with pytest.raises(DataError, match=r"config\.yaml is not valid YAML"):
        load([tmp_path])


# TensorBoard


def _events(directory, scalars, hparams=None):
    """Writes {tag: [values at steps 10, 20, ...]} with tensorboard's own writer."""
    pytest.importorskip("tensorboard", reason="needs tensorboard (areca[track])")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import summary_v2
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(directory))
    if hparams:
        writer.add_event(Event(summary=summary_v2.hparams_pb(hparams)))
    for i in range(max(map(len, scalars.values()))):
        for tag, values in scalars.items():
            if i < len(values):
                value = Summary.Value(tag=tag, simple_value=values[i])
                writer.add_event(Event(step=10 * (i + 1), summary=Summary(value=[value])))
    writer.close()


def test_event_files_give_the_last_loss_and_the_most_tokens(tmp_path):
    for name, n, d, l in RUNS:
        # Tokens were counted anew after a restart, so the last is not the most.
        _events(tmp_path / name, {"eval/loss": [9.0, l], "train/tokens": [d / 2, d, d / 4]}, {"n_params": n, "lr": 0.1})
    o = load([tmp_path])
    assert _is_runs(o, rel=1e-6)  # scalars are float32
    assert list(o.column("steps")) == [30, 30, 30]
    assert list(o.column("learning_rate")) == [0.1] * 3
    assert load([next((tmp_path / "small").glob("*tfevents*"))]).loss[0] == pytest.approx(3.9)


def test_settings_lie_beside_the_events_and_train_and_eval_are_one_run(tmp_path):
    for name, n, d, l in RUNS:
        _events(tmp_path / name / "validation", {"loss": [9.0, l]})
        _events(tmp_path / name / "train", {"loss": [9.0, l - 1], "tokens": [d / 2, d]})
        _write(tmp_path / name / "run.json", json.dumps({"config": {"model": {"n_params": n}}}))
    o = load([tmp_path])
    assert _is_runs(o, rel=1e-6)


def test_thousands_of_scalars_are_all_read(tmp_path):
    tokens = [*(2.0**20 * (i + 1) for i in range(2000)), *(2.0**20 * i for i in range(1000))]  # counted anew at 2,000
    _events(tmp_path, {"eval/loss": [5 - i / 1000 for i in range(3000)], "tokens": tokens, "n_params": [1e6]})
    o = load([tmp_path])
    assert o.loss[0] == pytest.approx(5 - 2.999)
    assert o.n_tokens[0] == 2000 * 2**20


def test_event_files_without_the_reader_or_without_scalars(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "events.out.tfevents.1.host").write_bytes(b"")
    pytest.importorskip("tensorboard", reason="needs tensorboard (areca[track])")
    with pytest.raises(DataError, match="no scalar in them"):
        load([tmp_path])
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(DataError, match=r"install it with `pip install -e '\.\[track\]'`"):
        load([tmp_path])


def test_losses_of_event_files_are_finite(tmp_path):
    _events(tmp_path, {"eval/loss": [3.0, math.nan], "tokens": [1e9], "n_params": [1e6]})
    with pytest.raises(DataError, match="has nan in column 'eval/loss'"):
        load([tmp_path])
