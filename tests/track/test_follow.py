"""What a tracker is sent of metrics.jsonl: each step once and in order, through kills, rewinds and torn lines."""

import json

import pytest

from areca.errors import BusyError, CheckpointError, ConfigError
from areca.track import rows
from areca.track.follow import Follower
from areca.track.rows import numbers, settings
from areca.track.trackers import TRACKERS, check


class Fake:
    """A tracker of a third party, which refuses what a strict one would."""

    def __init__(self, has: int | None = None, keeps_all: bool = True) -> None:
        self.has, self.keeps_all = has, keeps_all
        self.series: dict[str, list[tuple[int, float]]] = {}
        self.calls: list[str] = []

    def begin(self, name, config):
        self.calls.append("begin")
        self.config = config
        return self.has

    def log(self, step, values):
        for name, value in values.items():
            assert not self.series.get(name) or self.series[name][-1][0] < step, f"{name} goes back to {step}"
            self.series.setdefault(name, []).append((step, value))

    def rewind(self, step):
        self.calls.append(f"rewind {step}")
        after = step if self.keeps_all else 0
        self.series = {n: [p for p in s if p[0] <= after] for n, s in self.series.items()}
        return after

    def end(self):
        self.calls.append("end")


@pytest.fixture
def run(tmp_path):
    """A run directory without lines."""
    directory = tmp_path / "first"
    directory.mkdir()
    (directory / "run.json").write_text(json.dumps({"config": {"seed": 1}, "counts": {"n_params": 10}}))
    (directory / "metrics.jsonl").touch()
    (directory / "events.jsonl").touch()
    return directory


def line(step, loss, seconds=0.1):
    row = {"step": step, "tokens": 64 * step, "loss": loss, "seconds": seconds, "steady": True, "saving": None}
    return json.dumps(row) + "\n"


def write(run, text, mode="a", file="metrics.jsonl"):
    with (run / file).open(mode) as f:
        f.write(text)


def event(run, **fields):
    write(run, json.dumps({"time": 1.0, **fields}) + "\n", file="events.jsonl")


def losses(tracker, name="train/loss"):
    return tracker.series.get(name, [])


def test_lines_are_sent_once_as_they_come_and_a_torn_one_when_it_is_whole(run):
    tracker = Fake()
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        assert follower.poll() == 0
        write(run, line(1, 5.0) + line(2, 4.0) + line(3, 3.0)[:17])
        assert follower.poll() == 2
        assert follower.poll() == 0
        write(run, line(3, 3.0)[17:])
        assert follower.poll() == 1
    assert losses(tracker) == [(1, 5.0), (2, 4.0), (3, 3.0)]
    assert losses(tracker, "tokens") == [(1, 64.0), (2, 128.0), (3, 192.0)]
    assert tracker.calls == ["begin", "end"]


def test_a_long_file_is_read_in_parts(run, monkeypatch):
    monkeypatch.setattr(rows, "PART", 1000)
    write(run, "".join(line(s, 1.0) for s in range(1, 201)) + json.dumps({"step": 201, "x": "y" * 5000}) + "\n")
    tracker = Fake()
    reader = rows.Lines(run / "metrics.jsonl")
    parts = []
    while found := reader.read()[0]:
        parts.append(len(found))
    assert sum(parts) == 201
    assert max(parts) < 15
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        assert follower.poll() == 201
    assert [s for s, _ in losses(tracker)] == list(range(1, 201))


def test_a_later_process_sends_only_what_is_new(run):
    write(run, line(1, 5.0) + line(2, 4.0))
    with Follower(run, "tensorboard", tracker=Fake()) as follower:
        assert follower.poll() == 2
    write(run, line(3, 3.0))
    again = Fake()
    with Follower(run, "tensorboard", tracker=again) as follower:
        assert follower.poll() == 1
    assert losses(again) == [(3, 3.0)]


def test_steps_that_a_killed_run_takes_again_with_the_same_bits_are_not_sent_again(run):
    tracker = Fake()
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        write(run, line(1, 5.0) + line(2, 4.0) + line(3, 3.0) + line(4, 2.0))
        follower.poll()
        # Cut to the checkpoint of step 1 and grown past where it was, between two looks: other seconds, the same loss.
        write(run, line(1, 5.0), "w")
        write(run, line(2, 4.0, 0.7) + line(3, 3.0, 0.7) + line(4, 2.0, 0.7) + line(5, 1.0, 0.7))
        event(run, event="resume", step=1)
        follower.poll()
    assert losses(tracker) == [(1, 5.0), (2, 4.0), (3, 3.0), (4, 2.0), (5, 1.0)]
    assert tracker.calls == ["begin", "end"]


@pytest.mark.parametrize("keeps_all", [True, False])
def test_a_rewind_takes_back_what_was_sent_after_it(run, keeps_all):
    tracker = Fake(keeps_all=keeps_all)
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        write(run, "".join(line(s, 10.0 - s) for s in range(1, 7)))
        event(run, event="evaluate", step=2, loss=8.5)
        event(run, event="evaluate", step=5, loss=99.0)
        follower.poll()
        write(run, "".join(line(s, 10.0 - s) for s in range(1, 3)), "w")  # the checkpoint of step 2
        event(run, event="rewind", step=6, to_step=3, number=1)
        follower.poll()
        write(run, line(3, 7.0) + line(4, 6.5) + line(5, 5.5))
        event(run, event="evaluate", step=5, loss=6.0)
        follower.poll()
    assert losses(tracker) == [(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.5), (5, 5.5)]
    assert losses(tracker, "eval/loss") == [(2, 8.5), (5, 6.0)]
    assert tracker.calls == ["begin", "rewind 3", "end"]


def test_a_rewind_that_nobody_followed_is_made_up_for(run):
    write(run, "".join(line(s, 10.0 - s) for s in range(1, 7)))
    with Follower(run, "tensorboard", tracker=Fake()) as follower:
        follower.poll()
    write(run, "".join(line(s, 10.0 - s) for s in range(1, 4)) + line(4, 6.5) + line(5, 5.5), "w")
    event(run, event="rewind", step=6, to_step=3, number=1)
    tracker = Fake()
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        follower.poll()
    assert tracker.calls == ["begin", "rewind 3", "end"]
    assert losses(tracker) == [(4, 6.5), (5, 5.5)]
    third = Fake()
    with Follower(run, "tensorboard", tracker=third) as follower:
        assert follower.poll() == 0
    assert third.calls == ["begin", "end"]


def test_steps_taken_again_with_other_bits_are_found_without_an_event(run):
    tracker = Fake()
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        write(run, "".join(line(s, 10.0 - s) for s in range(1, 5)))
        follower.poll()
        write(run, line(1, 9.0) + line(2, 8.0) + line(3, 7.25) + line(4, 6.25), "w")  # --from-step 2, other threads
        follower.poll()
    assert tracker.calls == ["begin", "rewind 2", "end"]
    assert losses(tracker) == [(1, 9.0), (2, 8.0), (3, 7.25), (4, 6.25)]
    # A later process has the last step's digest only.
    write(run, line(1, 9.0) + line(2, 8.0) + line(3, 7.25) + line(4, 5.0), "w")
    later = Fake()
    with Follower(run, "tensorboard", tracker=later) as follower:
        follower.poll()
    assert later.calls == ["begin", "rewind 0", "end"]
    assert losses(later) == [(1, 9.0), (2, 8.0), (3, 7.25), (4, 5.0)]


def test_the_tracker_says_what_it_has(run):
    write(run, "".join(line(s, 10.0 - s) for s in range(1, 5)))
    with Follower(run, "wandb", tracker=Fake()) as follower:
        follower.poll()
    some, none = Fake(has=2), Fake(has=0)
    with Follower(run, "wandb", tracker=some) as follower:
        follower.poll()
    assert losses(some) == [(3, 7.0), (4, 6.0)]
    with Follower(run, "wandb", tracker=none) as follower:
        follower.poll()
    assert [s for s, _ in losses(none)] == [1, 2, 3, 4]


def test_what_is_evaluated_after_the_last_step_that_was_seen_comes_before_the_next(run):
    tracker = Fake()
    with Follower(run, "tensorboard", tracker=tracker) as follower:
        write(run, line(1, 5.0) + line(2, 4.0))
        follower.poll()
        event(run, event="evaluate", step=2, loss=4.5, by_corpus={"books": 4.25})
        write(run, line(3, 3.0))
        tracker.log = lambda step, values, log=tracker.log: (order.append(step), log(step, values))
        order = []
        follower.poll()
    assert order == [2, 3]
    assert losses(tracker, "eval/loss") == [(2, 4.5)]
    assert losses(tracker, "eval/books") == [(2, 4.25)]


def test_numbers_that_are_none_are_left_out():
    row = {"step": 3, "loss": None, "mfu": 0.5, "watts": None, "steady": True, "saving": 7, "grad_norm": float("inf")}
    assert numbers(row) == {"speed/mfu": 0.5}


def test_neither_paths_nor_secrets_are_sent():
    run = {
        "config": {"data": {"store": "/home/ada/secret-project/store", "weights": [["/home/ada/x", 1.0]]}, "seed": 3},
        "store": {"path": "/home/ada/store"},
        "labels": {"api_key": "12345", "wandb_token": "hf_9", "out": "~/runs/a", "note": "either/or", "tokens": 5},
        "topology": {"backend": "cpu"},
    }
    assert settings(run) == {
        "config.data.store": "store",
        "config.data.weights": '[["x", 1.0]]',
        "config.seed": 3,
        "labels.out": "a",
        "labels.note": "either/or",
        "labels.tokens": 5,
        "topology.backend": "cpu",
    }


def test_two_processes_do_not_send_a_run_to_one_tracker(run):
    with Follower(run, "tensorboard", tracker=Fake()):
        with pytest.raises(BusyError, match="first is being sent to tensorboard by another process already; wait"):
            Follower(run, "tensorboard", tracker=Fake())
        Follower(run, "trackio", tracker=Fake()).close()


def test_what_can_not_be_followed_is_one_sentence(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match="not a run directory"):
        Follower(tmp_path, "tensorboard", tracker=Fake())
    with pytest.raises(ConfigError, match=r"no tracker 'wandd' \(did you mean 'wandb'\?\)"):
        check(["wandd"])
    monkeypatch.setitem(TRACKERS, "wandb", ("areca.track.wandb:Wandb", "no_such_library", "wandb"))
    with pytest.raises(ConfigError, match=r"^wandb is not installed; `pip install -e '\.\[wandb\]'`"):
        check(["wandb"])
    assert list(tmp_path.iterdir()) == []
