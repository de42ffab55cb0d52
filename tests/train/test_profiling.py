"""Profiles of chosen steps: they are written, hold those steps only, and change no number."""

import gzip
import json

import pytest

from areca.errors import ConfigError
from areca.files import read_json
from areca.train.loop import train
from tiny import tiny_config


def test_chosen_steps_are_profiled_and_no_number_changes(tiny_store, tmp_path):
    config = tiny_config(tiny_store, tokens=8 * 4 * 16)
    plain = train(config, tmp_path / "plain")
    told = []
    found = train(config, tmp_path / "run", profile_steps=((2, 3), (4, 4), (8, 8)), say=told.append)
    assert found["loss"] == plain["loss"]
    traces = sorted((tmp_path / "run" / "profile").rglob("*.trace.json.gz"))
    assert {t.relative_to(tmp_path / "run" / "profile").parts[0] for t in traces} == {
        f"steps-{s}" for s in ("2-3", "4-4", "8-8")
    }
    assert list((tmp_path / "run" / "profile").rglob("*.xplane.pb"))
    assert any("profile of the chosen steps" in sentence for sentence in told)
    events = json.loads(gzip.decompress(traces[0].read_bytes()))["traceEvents"]
    assert sum(e.get("name", "").startswith(("PjitFunction", "PjRtCpuExecutable::Execute", "TfrtCpu")) for e in events)


@pytest.mark.parametrize(
    ("steps", "says"), [(((9, 9),), "--profile-steps goes to step 9 and the run has 8; name earlier ones")]
)
def test_steps_that_are_not_there_are_refused_before_anything_is_written(tiny_store, tmp_path, steps, says):
    with pytest.raises(ConfigError, match=says):
        train(tiny_config(tiny_store, tokens=8 * 4 * 16), tmp_path / "run", profile_steps=steps)
    assert not (tmp_path / "run").exists()


def test_a_run_that_has_ended_says_that_there_is_nothing_to_profile(tiny_store, tmp_path):
    config, told = tiny_config(tiny_store, tokens=2 * 4 * 16), []
    train(config, tmp_path / "run")
    train(config, tmp_path / "run", resume="must", profile_steps=((1, 1),), say=told.append)
    assert any("nothing of --profile-steps" in sentence for sentence in told)
    assert not (tmp_path / "run" / "profile").exists()
    assert read_json(tmp_path / "run" / "result.json")
