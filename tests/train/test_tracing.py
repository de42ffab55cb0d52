"""Recording steps of a run over islands."""

import json

import pytest

from areca.cli.main import main
from areca.config import IslandsConfig, to_dict
from areca.errors import ConfigError
from areca.pathways.seeing.trace import read, summary
from areca.train.islands.tracing import parse_steps
from areca.train.loop import train
from tiny import tiny_config


@pytest.fixture(scope="module")
def traced(tiny_store, tmp_path_factory):
    """A run of twelve steps over two islands, of which 3 to 5 and 9 are recorded."""
    place, said = tmp_path_factory.mktemp("traced") / "run", []
    config = tiny_config(tiny_store, islands=IslandsConfig(2, 2, digest_every=4))
    return place, train(config, place, trace_steps=((3, 5), (9, 9)), say=said.append), said


def test_the_chosen_steps_and_no_others_are_recorded(traced):
    place, _, said = traced
    events = read(place)
    assert {e.step for e in events} == {3, 4, 5, 9, -1}  # -1: the digest after step 4
    assert {e.name for e in events if e.step == -1} == {"digest"}
    assert said == [f"{place}/trace.json has the timeline of 4 steps; look at it with `areca trace`."]
    for step in (3, 4, 5, 9):
        updates = [e for e in events if (e.step, e.kind, e.name) == (step, "compute", "update")]
        assert sorted(e.track for e in updates) == ["island 0", "island 1"]


def test_a_step_ends_with_its_update_and_its_time_adds_up(traced):
    events = read(traced[0])
    found = summary(events)
    assert [s["step"] for s in found["steps"]] == [3, 4, 5, 9]
    for step in found["steps"]:
        end = max(e.end for e in events if (e.step, e.name, e.kind) == (step["step"], "update", "compute"))
        assert step["start"] + step["seconds"] == pytest.approx(end)
        assert sum(step["kinds"].values()) == pytest.approx(step["seconds"])
    assert found["steps"][1]["start"] == pytest.approx(found["steps"][0]["start"] + found["steps"][0]["seconds"])


def test_every_program_starts_after_what_it_reads_has_ended(traced):
    events = [e for e in read(traced[0]) if e.kind in ("compute", "transfer")]
    ends = {value: e.end for e in events for value in e.made}
    known = [(e, value) for e in events for value in e.ins if value in ends]
    assert len(known) > 100
    assert all(ends[value] <= e.start or e.start == e.end for e, value in known)
    # The parameters that a step reads are those that the update of the step before made.
    updates = {(e.step, e.track): e for e in events if e.name == "update"}
    for island in ("island 0", "island 1"):
        assert set(updates[5, island].ins) & set(updates[4, island].made)


def test_recording_changes_no_bit(traced, tiny_store, tmp_path):
    config = tiny_config(tiny_store, islands=IslandsConfig(2, 2, digest_every=4))
    assert train(config, tmp_path / "run")["parameters_sha256"] == traced[1]["parameters_sha256"]
    assert not (tmp_path / "run" / "trace.json").exists()


def test_a_run_that_stops_leaves_what_was_recorded_and_one_that_has_ended_says_so(tiny_store, tmp_path):
    class Enough(Exception):
        pass

    def stop(progress):
        if progress.step == 6:
            raise Enough

    config, place, said = tiny_config(tiny_store, islands=IslandsConfig(2, 2)), tmp_path / "run", []
    with pytest.raises(Enough):
        train(config, place, listener=stop, trace_steps=((5, 12),))
    assert {5, 6} <= {e.step for e in read(place)}
    train(config, place, resume="must", trace_steps=((1, 2),), say=said.append)
    assert "no step of --trace-steps was taken by this command" in said[-1]
    train(config, place, resume="must", trace_steps=((1, 2),), say=said.append)
    assert f"{place} has ended, so there is nothing of --trace-steps to record." in said


@pytest.mark.parametrize(
    ("text", "steps"),
    [("10:12", ((10, 12),)), ("7", ((7, 7),)), ("50:51, 10:12", ((10, 12), (50, 51)))],
)
def test_steps_are_written_as_their_first_and_last(text, steps):
    assert parse_steps(text) == steps


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("12:10", "write the first and the last step, such as 10:12"),
        ("0:3", "write the first and the last step"),
        ("ten", "--trace-steps is 'ten'"),
        ("1:", "write the first"),
        ("1:5,5:7", "5:7 begins before step 5 has ended; join them"),
    ],
)
def test_steps_that_are_none_are_refused(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_steps(text)
    assert says in str(caught.value)


def test_steps_that_a_run_can_not_record_are_refused(tiny_store, tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(to_dict(tiny_config(tiny_store))))
    command = ["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "out"), "--trace-steps"]
    assert main([*command, "2:3"]) == 2
    assert "records what islands do, not one program or a pipeline; give --islands 2" in capsys.readouterr().err
    assert main([*command, "2:30", "--islands", "2"]) == 2
    assert "goes to step 30 and the run has 12; name earlier ones" in capsys.readouterr().err
    assert main([*command, "2:x", "--islands", "2"]) == 2
    assert "--trace-steps is '2:x'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "2:3", "--islands", "2"]) == 0
    assert main(["trace", str(tmp_path / "out")]) == 0
    assert "2 steps (2 to 3)" in capsys.readouterr().out
