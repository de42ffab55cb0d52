"""The engine where a server of its own would be too slow to bring to the point."""

import threading

import pytest

from areca.data.tokenizer import train_tokenizer
from areca.data.written import Written
from areca.model.lanes import Entry, Piece
from areca.model.sampling import Sampling
from areca.serve.engine import Engine, Job, QueueFull, Stopped, Stretch

TOKENIZER = train_tokenizer([""], 257)


class Fake:
    """A batch of one lane whose texts draw "ab" for ever, as fast as `go` lets them."""

    def __init__(self) -> None:
        self.free, self.go, self.broken = [0], threading.Semaphore(0), False

    def join(self, entries: list[Entry]) -> list[int]:
        lanes = self.free[: len(entries)]
        self.free = []
        return lanes

    def leave(self, lane: int) -> None:
        self.free = [lane]

    def advance(self, steps: int, top: int) -> dict[int, Piece]:
        assert self.go.acquire(timeout=10)
        if self.broken:
            raise RuntimeError("out of memory")
        return {0: Piece(TOKENIZER.encode("ab"), False)}


def _job(*stops: str) -> tuple[Job, list[Stretch], threading.Event]:
    got: list[Stretch] = []
    ended = threading.Event()

    def post(stretch: Stretch) -> None:
        got.append(stretch)
        if stretch.finish:
            ended.set()

    return Job(Entry([1], 99, Sampling()), Written(TOKENIZER, stops), post), got, ended


@pytest.fixture
def engine():
    batch = Fake()
    engine = Engine(batch, TOKENIZER, queue=2)  # type: ignore[arg-type]
    engine.batch = batch
    engine.start()
    yield engine
    batch.go.release(100)
    engine.stop()
    assert not engine._thread.is_alive()


def test_the_queue_takes_as_many_as_it_says_all_of_a_request_or_none(engine):
    first, _, ended = _job("ba")
    engine.submit([first])
    while engine.state()["waiting"]:
        pass
    waiting = [_job()[0] for _ in range(2)]
    with pytest.raises(QueueFull):
        engine.submit([*waiting, _job()[0]])
    assert engine.state()["waiting"] == 0
    engine.submit(waiting)
    with pytest.raises(QueueFull):
        engine.submit([_job()[0]])
    engine.cancel(waiting)
    assert engine.state()["waiting"] == 0
    engine.batch.go.release(2)  # "abab": the stop string lies over two calls
    assert ended.wait(10)
    assert first.written.text == "a"


def test_a_text_that_nobody_reads_frees_its_lane(engine):
    job, _, _ = _job()
    engine.submit([job])
    engine.cancel([job])
    engine.batch.go.release(1)
    other, _, ended = _job("b")
    engine.submit([other])
    engine.batch.go.release(2)
    assert ended.wait(10)
    assert engine.state()["cancelled"] == 1


def test_a_fault_ends_all_texts_and_is_known(engine, capfd):
    jobs = [_job() for _ in range(2)]
    engine.batch.broken = True
    engine.submit([job for job, _, _ in jobs])
    engine.batch.go.release(1)
    for _, got, ended in jobs:
        assert ended.wait(10)
        assert got[-1].finish == "error"
    assert engine.failure == "RuntimeError: out of memory"
    assert "out of memory" in capfd.readouterr().err
    with pytest.raises(Stopped):
        engine.submit([_job()[0]])


def test_texts_that_run_when_it_stops_are_told(engine):
    (running, got, ended), (waiting, got_too, ended_too) = _job(), _job()
    engine.submit([running, waiting])
    engine.batch.go.release(1)
    engine.stop(0)
    engine.batch.go.release(1)
    assert ended.wait(10)
    assert ended_too.wait(10)
    assert (got[-1].finish, got_too[-1].finish) == ("error", "error")
