"""Spikes and rewinds on the loss curve and in words, from made-up run directories."""

import json
import re

import numpy as np
import pytest
from synthetic_quickstart import write_run

from areca.report import build_report
from areca.report.rundirs import read_run
from areca.report.spikes import SHOWN, marks, sentences

SPIKE = {"event": "spike", "step": 33, "found_at": 35, "what": "loss", "value": 9.0, "median": 5.2, "scale": 0.03}
REWIND = {"event": "rewind", "step": 35, "to_step": 13, "skipped_from": 208, "skipped_to": 5008, "spike_step": 33}


def _run(path, *events):
    """A run of 40 steps and 100,000 tokens that met these events."""
    result = write_run(path, 1e4, 1e5, 5.0, np.random.default_rng(0), steps=40)
    with (path / "events.jsonl").open("a") as f:
        f.writelines(json.dumps({"time": 1767225701.0} | e) + "\n" for e in events)
    (path / "result.json").write_text(json.dumps(result | {"rewinds": 1, "skipped_tokens": 4800 * 64}))
    return path


def _columns(run, step):
    return run.metrics["tokens"][step - 1], run.metrics["loss"][step - 1]


def test_a_spike_is_drawn_at_its_loss_and_a_rewind_where_it_went_back_to(tmp_path):
    run = read_run(_run(tmp_path / "run", SPIKE | {"value": 5.4}, REWIND))
    spike, rewind = marks(run)
    assert (spike.kind, spike.tokens, spike.loss) == ("spike", 33 / 40 * 1e5, 5.4)
    assert (rewind.kind, rewind.tokens, rewind.loss) == ("rewind", *_columns(run, 13))
    assert sentences([run]) == [
        "run: spike at step 33 (loss 5.40, usually 5.20).",
        "run: back to step 13 and past 4.80k examples.",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": 1e30}, "loss 1.00×10<sup>30</sup>, usually 5.20"),
        ({"value": None, "median": None}, "loss not finite"),
        ({"what": "update_norm", "value": 4.0, "median": 0.5}, "update norm 4.00, usually 0.500"),
    ],
)
def test_a_spike_of_any_kind_stays_within_the_curve(tmp_path, changes, words):
    run = read_run(_run(tmp_path / "run", SPIKE | changes))
    (spike,) = marks(run)
    losses = [v for v in run.metrics["loss"] if v is not None]
    assert min(losses) <= spike.loss <= max(losses)
    assert spike.words == f"spike at step 33 ({words})"


def test_a_spike_past_the_metrics_and_events_of_other_tools_are_no_trouble(tmp_path):
    strange = [{"event": "spike"}, {"event": "rewind", "to_step": "x"}, {"event": 7}, SPIKE | {"step": 400}]
    run = read_run(_run(tmp_path / "run", *strange, REWIND | {"to_step": 0}))
    assert [(m.kind, m.tokens) for m in marks(run)] == [("spike", 1e5), ("rewind", 1e5 / 40)]
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert marks(read_run(tmp_path / "run")) == []


def test_the_page_draws_them_and_says_them(tmp_path):
    one, two = _run(tmp_path / "one", SPIKE, REWIND), _run(tmp_path / "two", *[SPIKE, REWIND] * SHOWN)
    summary = build_report([one, two], tmp_path / "out", figures=True)
    html = (tmp_path / "out" / "report.html").read_text()
    drawn = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])["plot-training"]["data"]
    of = {kind: [t for t in drawn if t["name"] == kind] for kind in ("spike", "rewind")}
    assert [len(t["x"]) for t in of["spike"]] == [len(t["x"]) for t in of["rewind"]] == [1, SHOWN]
    assert [t["showlegend"] for t in of["spike"]] == [True, False]
    assert "<li>one: spike at step 33 (loss 9.00, usually 5.20).</li>" in html
    assert f"<li>{2 + 2 * SHOWN - SHOWN} more are in events.jsonl.</li>" in html
    assert [(r["rewinds"], r["skipped_tokens"]) for r in summary["runs"]] == [(1, 307_200)] * 2
    assert (tmp_path / "out" / "training.svg").exists()


def test_a_page_without_spikes_does_not_mention_them(tmp_path):
    write_run(tmp_path / "run", 1e4, 1e5, 5.0, np.random.default_rng(0), steps=40)
    build_report([tmp_path / "run"], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text()
    assert "Spikes and rewinds" not in html
