"""An anneal, masked documents and Muon at once: the same training however it is spread, the same bits after a stop."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from areca.config import (
    AnnealConfig,
    BatchConfig,
    CheckpointConfig,
    IslandsConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PipelineConfig,
    RunConfig,
    ScheduleConfig,
)
from areca.data.store import TokenStore
from areca.errors import ConfigError
from areca.interop.huggingface import export_hf, import_hf
from areca.report import build_report
from areca.train.loop import train
from areca.train.models import start_of
from areca.train.record import metrics_without_timing, read_metrics
from areca.train.restore import load_model
from tiny import tiny_config

MODEL = ModelConfig(vocab_size=300, d_model=16, n_layers=2, n_heads=4, d_ff=32, n_kv_heads=2, document_mask=True)


def _config(store, **changes) -> RunConfig:
    """Four steps of 4 x 16 tokens, the last two of the anneal."""
    fields = {
        "model": MODEL,
        "tokens": 256,
        "optimizer": OptimizerConfig("muon", learning_rate=0.02, momentum=0.95, beta2=0.95, weight_decay=0.1),
        "schedule": ScheduleConfig("wsd", warmup_tokens=64, decay_tokens=128),
        "batch": BatchConfig(((0, 4),)),
        "anneal": AnnealConfig((("small", 1.0),)),
        "checkpoint": CheckpointConfig(every_steps=1, keep_last=4),
    }
    return tiny_config(store, **(fields | changes))


@pytest.fixture(scope="module")
def run(tiny_store, tmp_path_factory):
    path = tmp_path_factory.mktemp("options") / "run"
    train(_config(tiny_store), path)
    return path


def test_the_options_are_in_the_record_and_each_of_them_matters(tiny_store, run):
    config = json.loads((run / "run.json").read_text())["config"]
    assert config["model"]["document_mask"] is True
    assert config["model"]["document_end"] == TokenStore.open(tiny_store).eod_id
    assert (config["optimizer"]["name"], config["optimizer"]["muon_scale"]) == ("muon", "spectral")
    assert config["anneal"] == {"weights": [["small", 1.0]], "start": 0}
    result = json.loads((run / "result.json").read_text())
    assert [m["tokens"] for m in result["mixtures"]] == [128, 128]


def test_the_report_says_what_of_each_mixture_was_read(run, tmp_path):
    summary = build_report([run], tmp_path / "out")
    mixtures = json.loads((run / "result.json").read_text())["mixtures"]
    assert summary["runs"][0]["mixtures"] == mixtures
    html = (tmp_path / "out" / "report.html").read_text()
    table = html[html.index("epochs of it") :]
    found = [re.sub(r"<[^>]+>", " ", row).split() for row in table.split("<tr>")[1:4]]
    assert found[0][:6] == ["run", "main,", "steps", "1", "to", "2"]
    small = mixtures[1]["epochs"]["small"]
    assert found[2][:9] == ["run", "anneal,", "steps", "3", "to", "4", "small", "8", f"{small:.2f}"]


def test_an_export_is_the_same_model_and_keeps_the_setting_for_the_way_back(run, tmp_path):
    export_hf(run, tmp_path / "hf")
    assert "document" not in (tmp_path / "hf" / "config.json").read_text()
    import_hf(tmp_path / "hf", tmp_path / "model")
    assert load_model(tmp_path / "model").config.model == load_model(run).config.model


def test_a_run_without_the_mask_starts_from_a_model_that_had_it(tiny_store, run, tmp_path):
    config = _config(tiny_store, model=replace(MODEL, document_mask=False), init_from=str(run))
    start = start_of(config, TokenStore.open(tiny_store), tmp_path / "more")
    assert start is not None
    assert start["step"] == 4


def test_it_goes_on_with_the_same_bits(tiny_store, run, tmp_path):
    again = shutil.copytree(run, tmp_path / "again")
    train(_config(tiny_store), again, resume="must", from_step=1)
    assert metrics_without_timing(again) == metrics_without_timing(run)
    one, other = (json.loads((r / "result.json").read_text()) for r in (run, again))
    assert all(one[k] == other[k] for k in ("parameters_sha256", "loss", "mixtures"))


@pytest.mark.parametrize(
    ("spread", "elsewhere"),
    [
        (
            {"islands": IslandsConfig(2, shards=2), "parallel": ParallelConfig(2, 1)},
            {"islands": IslandsConfig(1, shards=2)},
        ),
        ({"pipeline": PipelineConfig(2, 2)}, {"pipeline": PipelineConfig(1, 2)}),
    ],
    ids=["islands of meshes", "stages"],
)
def test_it_is_the_same_training_wherever_it_is_and_goes_on_with_the_same_bits(
    tiny_store, run, tmp_path, spread, elsewhere
):
    train(_config(tiny_store, **spread), tmp_path / "run")
    alone, there = read_metrics(run), read_metrics(tmp_path / "run")
    for name in ("loss", "grad_norm", "update_norm", "param_norm"):
        np.testing.assert_allclose([r[name] for r in there], [r[name] for r in alone], rtol=1e-4)
    losses = [json.loads((r / "result.json").read_text())["loss"] for r in (run, tmp_path / "run")]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    # From the middle, on one island or stage where it had two.
    again = shutil.copytree(tmp_path / "run", tmp_path / "again")
    train(_config(tiny_store, **(spread | elsewhere)), again, resume="must", from_step=2)
    assert metrics_without_timing(again) == metrics_without_timing(tmp_path / "run")
    one, other = (json.loads((tmp_path / r / "result.json").read_text()) for r in ("run", "again"))
    assert one["parameters_sha256"] == other["parameters_sha256"]


def test_another_end_of_documents_than_the_stores_is_refused(tiny_store, tmp_path):
    for model, says in (
        (replace(MODEL, document_end=7), "model.document_end is 7 and the documents of .* end with 0"),
        (
            replace(MODEL, document_mask=False, document_end=0),
            "model.document_end is 0 and model.document_mask is false",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            train(_config(tiny_store, model=model), tmp_path / "run")
