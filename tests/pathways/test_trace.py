"""A timeline's file and what it says: the path that a step waited for, utilisation, files that are none."""

import itertools
import json
import random
import subprocess
import sys

import pytest

from areca.cli.main import main
from areca.errors import DataError
from areca.pathways.seeing.critical import Order, critical_path, length, merged, within, without
from areca.pathways.seeing.timeline import Event, Timeline
from areca.pathways.seeing.trace import read, summary, write


def event(kind, name, track, start, end, sequence=-1, step=1, ins=(), made=()):
    return Event(kind, name, track, "train", sequence, start, end, step, tuple(ins), tuple(made))


def two_islands(late: float) -> list[Event]:
    """Island 0 makes what island 1 adds to its own, which it has ready at `late`."""
    return [
        event("prepare", "forward", "client train", 0, 0),
        event("dispatch", "forward", "dispatcher", 0, 1, 0, ins=(), made=(10, 11)),
        event("compute", "forward", "island 0", 1, 4, 0, made=(10,)),
        event("compute", "forward", "island 1", 1, late, 0, made=(11,)),
        event("dispatch", "forward to island 1", "dispatcher", 1, 1.5, 1, ins=(10,), made=(12,)),
        event("transfer", "forward to island 1", "island 1", 4, 6, 1, ins=(10,), made=(12,)),
        event("dispatch", "update", "dispatcher", 1.5, 2, 2, ins=(11, 12), made=(13,)),
        event("compute", "update", "island 1", max(6, late), max(6, late) + 1, 2, ins=(11, 12), made=(13,)),
    ]


def waited(events):
    (step,) = summary(events)["steps"]
    return {(w["kind"], w["name"]): w["seconds"] for w in step["waited"]}, step


def test_a_step_waits_for_the_transfer_that_comes_last():
    found, step = waited(two_islands(late=3))
    assert found == {("compute", "forward"): 3, ("transfer", "forward to island 1"): 2, ("compute", "update"): 1}
    assert (step["start"], step["seconds"]) == (1, 6)


def test_a_step_waits_for_its_own_island_where_that_is_slower():
    found, _ = waited(two_islands(late=9))
    assert found == {("compute", "forward"): 8, ("compute", "update"): 1}


def test_a_step_waits_for_the_order_of_the_island_and_not_only_for_data():
    """The update reads nothing of what another client computes before it on the island."""
    other = event("compute", "other", "island 1", 6, 6.5, 3, step=-1)
    update = event("compute", "update", "island 1", 6.5, 7.5, 4, ins=(11, 12))
    found, _ = waited([*two_islands(late=3)[:-2], other, update])
    idle = {("idle", "before other"): 3}  # nobody says what it waited for
    assert found == {("compute", "forward"): 2, ("compute", "other"): 0.5, ("compute", "update"): 1} | idle


def test_a_step_waits_for_host_functions_and_for_their_dispatch():
    events = [
        event("prepare", "load", "client train", 1, 1),
        event("host", "load", "host", 1.5, 4, made=(1,)),
        event("dispatch", "train", "dispatcher", 4.25, 4.5, 7, ins=(1,), made=(2,)),
        event("compute", "train", "island 0", 4.5, 6, 7, ins=(1,), made=(2,)),
        event("compute", "early", "island 0", 0, 0.5, 6),
    ]
    found, _ = waited(events)
    assert found == {
        ("compute", "train"): 1.5,
        ("dispatch", "train"): 0.25,
        ("dispatch", "dispatcher"): 0.25,
        ("host", "load"): 2.5,
        ("idle", "before load"): 0.5,
        ("idle", "until the client submits"): 1.0,
    }


def test_a_step_waits_for_its_client():
    events = [
        event("compute", "early", "island 0", 0, 1, 6),
        event("dispatch", "early", "dispatcher", 0, 0.5, 6),
        event("prepare", "train", "client train", 2, 2),
        event("dispatch", "train", "dispatcher", 2.25, 2.5, 7),
        event("compute", "train", "island 0", 2.5, 3, 7),
    ]
    found, _ = waited(events)
    dispatch = {("dispatch", "dispatcher"): 0.25, ("dispatch", "train"): 0.25}
    assert found == {("compute", "train"): 0.5, ("idle", "until the client submits"): 2} | dispatch


def test_islands_need_not_know_what_the_dispatcher_does():
    """Events of islands elsewhere, without values: those of their dispatch serve."""
    bare = [
        event(e.kind, e.name, e.track, e.start, e.end, e.sequence) if e.track.startswith("island") else e
        for e in two_islands(late=3)
    ]
    assert waited(bare)[0] == waited(two_islands(late=3))[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_path_fills_the_step_without_gaps(seed):
    rng, events = random.Random(seed), []
    for i in range(60):
        start, track = rng.uniform(0, 10), rng.choice(["island 0", "island 1"])
        kind = rng.choice(["compute", "transfer"])
        ins = rng.sample(range(i), min(i, 2))
        events.append(event("dispatch", f"p{i}", "dispatcher", start - 0.1, start, i))
        events.append(event(kind, f"p{i}", track, start, start + rng.uniform(0, 1), i, ins=ins, made=(i,)))
    last = max(events, key=lambda e: e.end)
    path = critical_path(Order(events), last, 0.5)
    assert (path[0].start, path[-1].end) == (0.5, last.end)
    assert all(a.end == b.start for a, b in itertools.pairwise(path))
    (step,) = summary(events)["steps"]
    assert sum(step["kinds"].values()) == pytest.approx(step["seconds"])


def test_utilisation_is_of_unions():
    """Programs that overlap count once; a transfer beside a program is no time of its own."""
    events = [
        event("compute", "a", "island 0", 0, 4, 0),
        event("compute", "b", "island 0", 2, 5, 1),
        event("transfer", "c", "island 0", 4, 7, 2),
        event("transfer", "d", "island 0", 6, 8, 3),
        event("compute", "e", "island 1", 0, 10, 4),
        event("dispatch", "a", "dispatcher", 0, 1, 0),
        event("dispatch", "b", "dispatcher", 9, 12, 1),
    ]
    found = summary(events)
    expected = {"compute": 0.5, "transfer": 0.3, "idle": 0.2, "transfer_overlapped": 0.1}
    assert found["islands"]["island 0"] == pytest.approx(expected)
    assert found["islands"]["island 1"]["compute"] == 1
    assert found["dispatcher"] == {"busy": pytest.approx(0.2), "dispatches": 2}
    (a,) = [p for p in found["programs"] if p["name"] == "a"]
    assert a == {"kind": "compute", "name": "a", "count": 1, "seconds": 4, "median": 4}


def test_steps_follow_each_other_and_windows_are_apart():
    events = [event("compute", "update", "island 0", n - 0.75 * (n in (3, 9)), n, n, step=n) for n in (3, 4, 5, 9, 10)]
    found = summary(events)
    assert [(s["step"], s["seconds"]) for s in found["steps"]] == [(3, 0.75), (4, 1), (5, 1), (9, 0.75), (10, 1)]
    assert found["seconds"] == 4.5


def test_a_trace_without_steps_is_one():
    events = [event("compute", "a", "island 0", n, n + 1, n, step=-1) for n in (2, 5)]
    (step,) = summary(events)["steps"]
    assert (step["step"], step["seconds"]) == (-1, 4)


def test_unions_of_intervals():
    spans, others = merged([(3, 5), (0, 1), (0.5, 2)]), [(1, 4)]
    assert spans == [(0, 2), (3, 5)]
    assert length(spans) == 4
    assert within(spans, others) == [(1, 2), (3, 4)]
    assert without(spans, others) == [(0, 1), (4, 5)]
    assert without(spans, []) == spans


def test_the_file_holds_the_events_and_no_thread_of_it_overlaps(tmp_path):
    events = [
        *two_islands(late=9),
        event("transfer", "another", "island 1", 5, 7, 3),
        event("transfer", "third", "island 1", 6.5, 8, 4),
        event("compute", "later", "island 1", 12, 13, 5),
    ]
    write(tmp_path / "trace.json", events)
    assert sorted(read(tmp_path), key=repr) == sorted(events, key=repr)
    rows = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [r["args"]["name"] for r in rows if r["name"] == "thread_name"]
    of_island_1 = ["compute", "dispatch", "transfer 1", "transfer 2", "idle"]
    assert sorted(names) == sorted(["compute", "dispatch", *of_island_1, "dispatcher", "client train"])
    threads: dict = {}
    for r in rows:
        if r["ph"] == "X":
            threads.setdefault((r["pid"], r["tid"]), []).append((r["ts"], r["ts"] + r["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-6 for a, b in itertools.pairwise(spans))
    # The first event of the file is at zero.
    assert min(r["ts"] for r in rows if r["ph"] == "X") == 0


def test_what_islands_elsewhere_measure_is_completed_by_what_was_dispatched():
    timeline = Timeline()
    timeline._known[7, "pod 1"] = event("compute", "forward", "pod 1", 0, 0, 7, step=3, ins=(1,), made=(2,))
    timeline.add([Event("compute", "forward", "pod 1", "", 7, 1.0, 2.0)])
    timeline.close()
    (found,) = timeline.events
    assert found == Event("compute", "forward", "pod 1", "train", 7, 1.0, 2.0, 3, (1,), (2,))


GOOD = {"kind": "compute", "name": "a", "track": "island 0", "client": "c", "sequence": 0, "start": 0.0, "end": 1.0}


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (None, "does not exist"),
        ("{", "is not JSON"),
        ("[1, 2]", "has no traceEvents"),
        ({"traceEvents": []}, "holds nothing that an island computed"),
        ({"traceEvents": [{"ph": "X", "name": "other", "args": {"x": 1}}]}, "another tool's trace"),
        ({"traceEvents": [{"args": GOOD | {"start": "soon"}}]}, "the start of event 'a' is \"soon\""),
        ({"traceEvents": [{"args": GOOD | {"end": float("nan")}}]}, "the end of event 'a' is NaN"),
        ({"traceEvents": [{"args": GOOD | {"end": -1}}]}, "event 'a' ends at -1 s, before it starts"),
        ({"traceEvents": [{"args": GOOD | {"kind": "magic"}}]}, "the kind of event 'a' is \"magic\""),
        ({"traceEvents": [{"args": GOOD | {"ins": 3}}]}, "the ins of event 'a' is 3"),
        ({"traceEvents": [{"args": {"track": "island 0", "kind": "compute"}}]}, "the name of event None is missing"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence(tmp_path, capsys, held, says):
    path = tmp_path / "trace.json"
    if held is not None:
        path.write_text(held if isinstance(held, str) else json.dumps(held))
    assert main(["trace", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert says in said.err


def test_a_run_that_was_not_recorded_is_told_how(tmp_path):
    with pytest.raises(DataError, match=r"trace.json does not exist; record one with `areca train .* --trace-steps"):
        read(tmp_path)


def test_reading_a_trace_needs_no_jax(tmp_path):
    write(tmp_path / "trace.json", two_islands(late=3))
    body = (
        "import sys; from areca.cli.main import main; main(sys.argv[1:])\n"
        "print(sorted({'jax', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", body, "trace", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_verb_says_it_in_words_and_for_machines(tmp_path, capsys):
    write(tmp_path / "trace.json", two_islands(late=3))
    assert main(["trace", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 step (1), 6 s, 2 islands" in said
    assert "forward to island 1" in said
    assert main(["trace", str(tmp_path / "trace.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(summary(read(tmp_path))))
