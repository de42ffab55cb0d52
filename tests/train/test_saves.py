"""What saves cost, by hand-made steps, and when they come; bits never depend on it."""

import pytest

from areca.config import CheckpointConfig
from areca.files import read_json, read_jsonl
from areca.train import saves
from areca.train.checkpoint import Checkpoints
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_metrics
from areca.train.saves import Saves, describe
from tiny import tiny_config


def _row(seconds: float, batch: int = 4, saving: int | None = None, steady: bool = True) -> dict:
    return {"seconds": seconds, "batch": batch, "saving": saving, "steady": steady}


ROWS = [
    _row(9.0, steady=False),  # the first step: no one's
    *[_row(s) for s in (0.9, 1.0, 1.1) * 3],  # 1 s alone at a batch of 4
    *(_row(1.5, saving=10, steady=False), _row(1.2, saving=10), _row(1.1, saving=10)),  # 0.8 s lost
    *[_row(2.0, batch=8) for _ in range(5)],
    *(_row(2.5, batch=8, saving=20, steady=False), _row(2.5, batch=8, saving=20)),  # 1 s lost
    _row(7.0, batch=8, steady=False),  # after an evaluation
]
EVENTS = [
    {"event": "start"},
    {"event": "save", "why": "interval", "blocked_seconds": 0.1},
    {"event": "save", "why": "stop", "blocked_seconds": 50.0},
    {"event": "save", "why": "interval", "blocked_seconds": 0.3},
    {"event": "save", "why": "end", "blocked_seconds": 50.0},
]


def test_a_save_costs_what_it_blocks_and_what_it_takes_from_the_steps_beside_its_write():
    cost = Saves(ROWS, EVENTS)
    assert (cost.count, cost.blocked) == (2, pytest.approx(0.4))
    assert cost.slowed() == pytest.approx(1.8)
    assert cost.each() == pytest.approx(0.4 / 2 + 1.8 / 2)
    # Two saves of 1.1 s, of 99.6 s of steps and 0.4 s of blocking between them.
    assert cost.share(99.6) == pytest.approx(0.022)
    result = cost.result(99.6)
    assert (result["count"], result["blocked_seconds"]) == (2, pytest.approx(0.4))
    assert "estimated from 5 steps beside a write against 14 without" in result["kind"]


def test_a_kill_that_cost_the_lines_of_a_write_does_not_make_saves_cheaper():
    # A third save whose steps were cut off at the resume: it is taken to have slowed as many as the other two.
    cost = Saves(ROWS, [*EVENTS, {"event": "save", "why": "interval", "blocked_seconds": 0.2}])
    assert cost.count == 3
    assert cost.each() == pytest.approx(0.6 / 3 + 1.8 / 2)


def test_steps_of_a_batch_that_was_never_trained_alone_are_not_compared():
    cost = Saves([_row(1.0), _row(3.0, batch=8, saving=5)], EVENTS[1:2])
    assert cost.slowed() is None
    assert cost.each() == pytest.approx(0.1)
    assert "unknown" in cost.result(10.0)["kind"]
    assert "at least 0.1 s each" in describe(cost.result(10.0))


def test_noise_that_makes_steps_beside_a_write_quicker_is_shown_and_is_no_gain():
    cost = Saves([_row(1.0), _row(1.0), _row(0.9, saving=5)], EVENTS[1:2])
    assert cost.result(10.0)["slowed_seconds"] == pytest.approx(-0.1)
    assert cost.each() == pytest.approx(0.1)


def test_the_next_save_comes_after_a_hundred_times_its_cost_within_bounds():
    assert Saves(ROWS, EVENTS).interval(10**12) == pytest.approx(110.0)
    cheap = Saves([_row(1.0), _row(1.0, saving=5)], [EVENTS[1]])
    assert cheap.interval(10**12) == saves.SHORTEST  # 0.1 s would be worth a save every 10 s
    dear = Saves([_row(1.0), _row(100.0, saving=5)], [EVENTS[1]])
    assert dear.interval(10**12) == saves.LONGEST
    # Until something was measured, a state of 80 MB is taken to cost 0.8 s.
    assert Saves().interval(80_000_000) == pytest.approx(80.0)
    assert Saves().interval(1000) == saves.SHORTEST
    assert Saves().interval(10**12) == saves.FIRST


def test_the_chosen_interval_keeps_saves_under_two_percent_whatever_they_cost():
    # Steps of 0.5 s, of 1.5 s while a write goes on, which costs `cost`; five hours, paced as the loop does.
    for cost in (0.4, 3.0, 20.0):
        heard, clock, blocked, last, step, number = Saves(), 0.0, 0.02 * cost, 0.0, 0, 0
        write_ends, lost = -1.0, 0.0
        while clock < 18_000:
            beside = write_ends > clock
            seconds = 1.5 if beside else 0.5
            heard.step(_row(seconds, saving=number if beside else None))
            clock, lost, step = clock + seconds, lost + (1.0 if beside else 0.0), step + 1
            if write_ends <= clock and clock - last >= heard.interval(200_000_000):
                number = step
                heard.saved(blocked)
                clock, lost = clock + blocked, lost + blocked
                last, write_ends = clock, clock + 1.5 * cost
        assert lost / clock < saves.LIMIT
        assert heard.share(clock - heard.blocked) == pytest.approx(lost / clock, rel=0.01)


def test_a_line_says_what_saves_took_and_what_to_do_if_it_is_too_much():
    said = {"count": 12, "seconds_each": 0.314, "share": 0.0092, "slowed_seconds": 3.0, "last_seconds": 0.52}
    assert describe(said) == "saves: 12, about 0.31 s each, 0.9% of the time; 0.52 s for the last."
    over = describe(said | {"share": 0.031})
    assert over.endswith("That is over 2%: raise checkpoint.every_steps, or leave it 0 to have it chosen.")
    assert describe(said | {"count": 0, "seconds_each": None}) == "saves: only at the end, 0.52 s for the last."


def test_a_run_measures_its_saves_and_says_them(tiny_store, tmp_path, capsys):
    from areca.cli.train import train as areca_train
    from areca.config import to_dict
    from areca.files import write_json

    write_json(tmp_path / "run.json", to_dict(tiny_config(tiny_store)))
    areca_train(str(tmp_path / "run.json"), out=str(tmp_path / "run"))
    rows = read_metrics(tmp_path / "run")
    # Saved after steps 4, 8 and 12: the steps after the first two ran beside their writes, those before beside none.
    assert [r["saving"] for r in rows[:5]] == [None] * 4 + [4]
    assert rows[8]["saving"] == 8
    events = [e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "save"]
    assert [(e["step"], e["why"]) for e in events] == [(4, "interval"), (8, "interval"), (12, "end")]
    result = read_json(tmp_path / "run" / "result.json")["saves"]
    assert result["count"] == 2
    assert result["blocked_seconds"] == pytest.approx(sum(e["blocked_seconds"] for e in events[:2]))
    assert result["last_seconds"] >= events[2]["blocked_seconds"]
    assert result["seconds_each"] >= result["blocked_seconds"] / 2
    assert describe(result) in capsys.readouterr().out


@pytest.mark.parametrize("writing", [False, True])
def test_when_saves_come_by_themselves_no_bit_depends_on_it(tiny_run, tiny_store, tmp_path, monkeypatch, writing):
    # Due at once until two are made; none is while another is being written.
    assert CheckpointConfig().every_steps == 0
    save = Checkpoints.save

    def save_and_wait(self, *arguments):
        save(self, *arguments)
        self.wait()

    monkeypatch.setattr(Checkpoints, "save", save_and_wait)
    monkeypatch.setattr(Checkpoints, "writing", lambda *_: 7 if writing else None)
    monkeypatch.setattr(Saves, "interval", lambda self, _: 0.0 if self.count < 2 else 1e9)
    result = train(tiny_config(tiny_store, checkpoint=CheckpointConfig(keep_last=9)), tmp_path / "run")
    with Checkpoints(tmp_path / "run" / "checkpoints", writable=False) as checkpoints:
        assert [e.step for e in checkpoints.entries()] == ([12] if writing else [1, 2, 12])
    assert result["saves"]["count"] == (0 if writing else 2)
    assert metrics_without_timing(tmp_path / "run") == metrics_without_timing(tiny_run)
    assert result["parameters_sha256"] == read_json(tiny_run / "result.json")["parameters_sha256"]


def test_steps_to_be_kept_are_saved_whatever_the_interval(tiny_store, tmp_path):
    config = tiny_config(tiny_store, checkpoint=CheckpointConfig(every_steps=10**6, keep_last=1, keep_every_steps=5))
    train(config, tmp_path / "run")
    with Checkpoints(tmp_path / "run" / "checkpoints", writable=False) as checkpoints:
        assert [e.step for e in checkpoints.entries()] == [5, 10, 12]
