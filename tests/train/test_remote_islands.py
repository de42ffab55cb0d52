"""Training over islands in other processes: the bits of islands in this one, and what becomes of a run that loses one.

DESIGN's contracts 2, 3 and 4: two islands of 2 x 2 devices in this process, in processes of this machine and as actors
of a Ray cluster of three nodes end with one digest after 50 steps, the one of two shards on a single island.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from areca.config import IslandsConfig, ParallelConfig
from areca.errors import ConfigError, TrainingError
from areca.pathways import fleet
from areca.pathways.elsewhere import processes, rays
from areca.train.evaluate import Evaluator
from areca.train.islands import run as islands_run
from areca.train.islands.evaluate import OnIslands
from areca.train.islands.over import OverIslands
from areca.train.islands.setting import check, setting_of
from areca.train.loop import train
from areca.train.record import read_events, read_metrics
from tiny import tiny_config

NUMBERS = ("step", "loss", "z_loss", "grad_norm", "update_norm", "param_norm")
TWO = IslandsConfig(2, 2, on="processes", deadline=60)


def numbers(run_dir):
    return [[row[k] for k in NUMBERS] for row in read_metrics(run_dir)]


def meshes(store, islands):
    return tiny_config(store, islands=islands, parallel=ParallelConfig(2, 2, "block"), tokens=50 * 64)


@pytest.fixture(scope="module")
def one(tiny_store, tmp_path_factory):
    """Two shards on one island of 2 x 2 devices."""
    place = tmp_path_factory.mktemp("remote") / "one"
    return place, train(meshes(tiny_store, IslandsConfig(1, 2)), place)


@pytest.fixture(scope="module")
def long_run(tiny_store, tmp_path_factory):
    """A longer run on islands of one device, and its configuration."""
    config = tiny_config(tiny_store, islands=TWO, tokens=150 * 64)
    place = tmp_path_factory.mktemp("remote") / "long"
    return config, place, train(replace(config, islands=IslandsConfig(1, 2)), place)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["devices", "processes"])
def test_two_islands_have_one_digest_wherever_they_are(one, tiny_store, tmp_path, on):
    place, result = one
    islands = IslandsConfig(2, 2, on=on, digest_every=10, chunk_mb=0.01, flows=2)
    two = train(meshes(tiny_store, islands), tmp_path / "two")
    assert two["parameters_sha256"] == result["parameters_sha256"]
    assert (two["loss"], two["loss_by_corpus"]) == (result["loss"], result["loss_by_corpus"])
    assert numbers(tmp_path / "two") == numbers(place)


@pytest.fixture
def islands(monkeypatch):
    """The islands of the run in progress."""
    made = []

    class Kept(OverIslands):
        def __init__(self, *args, **others):
            super().__init__(*args, **others)
            made.append(self)

    monkeypatch.setattr(islands_run, "OverIslands", Kept)
    return lambda: made[-1].islands


class Disturbance:
    """Does something to an island at step 5; then lets steps be slow until it has joined again."""

    def __init__(self, do):
        self.do, self.said = do, []

    def say(self, sentence):
        self.said.append(sentence)

    def listen(self, progress):
        if progress.step == 5:
            self.do()
        if 5 < progress.step < 140 and not any(" joined " in s for s in self.said):
            time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.exhaustive)])
def test_a_run_that_loses_an_island_goes_on_unchanged_and_takes_it_back(long_run, islands, tmp_path, number):
    config, place, result = long_run
    config = replace(config, islands=replace(TWO, deadline=4.0 if number == signal.SIGSTOP else 60.0))
    pids = []

    def disturb():
        pids.append(islands()[1].channels[0].process.pid)
        os.kill(pids[0], number)

    disturbed = Disturbance(disturb)
    lost = train(config, tmp_path / "run", listener=disturbed.listen, say=disturbed.say)
    assert lost["parameters_sha256"] == result["parameters_sha256"]
    assert numbers(tmp_path / "run") == numbers(place)
    events = [e for e in read_events(tmp_path / "run") if e["event"].startswith("island_")]
    assert [e["event"] for e in events] == ["island_lost", "island_joined"]
    assert f"process {pids[0]}" in events[0]["why"]
    assert events[0]["island"] == events[1]["island"] == "island 1"
    assert events[0]["left"] == ["island 0"]
    assert 0 <= events[0]["discarded"] <= 9
    assert len(events[1]["digest"]) == 16


@pytest.mark.slow
def test_islands_evaluate_in_turns_and_one_that_is_lost_meanwhile_is_done_without(
    long_run, islands, monkeypatch, tmp_path
):
    config, _, result = long_run
    monkeypatch.setattr(Evaluator, "_compile", None)  # that would be in this process
    used, each = [], OnIslands._each

    def disturbed(self, params, batches):
        for n, sums in enumerate(each(self, params, batches)):
            if n == 1 == len(used):
                os.kill(islands()[1].channels[0].process.pid, signal.SIGKILL)
                until = time.monotonic() + 30
                while islands()[1].error is None and time.monotonic() < until:
                    time.sleep(0.01)
            used.append([i.name for i in self._living(params)])
            yield sums

    monkeypatch.setattr(OnIslands, "_each", disturbed)
    done = train(replace(config, islands=replace(TWO, restart=False)), tmp_path / "run")
    assert used[0] == ["island 0", "island 1"]
    assert used[-1] == ["island 0"]
    assert (done["loss"], done["loss_by_corpus"]) == (result["loss"], result["loss_by_corpus"])
    assert done["parameters_sha256"] == result["parameters_sha256"]


@pytest.mark.slow
def test_a_run_whose_islands_are_all_lost_stops_and_goes_on_from_its_checkpoint(long_run, islands, tmp_path):
    config, place, result = long_run
    config = replace(config, checkpoint=replace(config.checkpoint, every_steps=20))

    def kill(progress):
        if progress.step == 30:
            for island in islands():
                os.kill(island.channels[0].process.pid, signal.SIGKILL)

    with pytest.raises(TrainingError, match=r"all islands are lost; the last: island \d was lost: process \d+ ended"):
        train(config, tmp_path / "run", listener=kill)
    events = read_events(tmp_path / "run")
    assert {e["island"] for e in events if e["event"] == "island_lost"} == {"island 0", "island 1"}
    done = train(config, tmp_path / "run", resume="must")
    assert done["parameters_sha256"] == result["parameters_sha256"]
    assert numbers(tmp_path / "run") == numbers(place)


@pytest.mark.slow
def test_a_run_ends_when_its_steps_are_taken_whatever_is_still_coming_up(long_run, islands, monkeypatch, tmp_path):
    """The replacement of a lost island is stopped while it starts: it is ended with the run, which does not wait."""
    config, _, result = long_run
    late = []

    class Stopped(processes.Starting):
        def __init__(self, *args):
            super().__init__(*args)
            late.append(self.members[0].process)
            os.kill(late[0].pid, signal.SIGSTOP)

    def kill(progress):
        if progress.step == 100:
            monkeypatch.setattr(fleet, "Starting", Stopped)
            os.kill(islands()[1].channels[0].process.pid, signal.SIGKILL)
        if progress.step > 100 and not late:
            time.sleep(0.1)

    started = time.monotonic()
    lost = train(config, tmp_path / "run", listener=kill)
    assert time.monotonic() - started < 100  # it would wait for the start for 120 s
    assert late[0].poll() == -signal.SIGKILL
    assert lost["parameters_sha256"] == result["parameters_sha256"]


@pytest.mark.parametrize(
    ("islands", "says"),
    [
        (replace(TWO, chunk_mb=0.0), "islands.chunk_mb is 0.0; choose from 0.001 to 1024"),
        (replace(TWO, flows=100_000), "islands.flows is 100000; choose from 1 to 64"),
        (replace(TWO, chunk_mb=1e-9), "islands.chunk_mb is 1e-09; choose from 0.001"),
        (IslandsConfig(99, 99, on="processes"), "islands.count is 99 and a batch has 4 sequences"),
        (replace(TWO, flows=0), "islands.flows is 0; choose from 1 to 64"),
        (replace(TWO, deadline=-1.0), "islands.deadline is -1.0; give seconds, from 1 to"),
        (replace(TWO, processes=2), "islands.processes is 2, and an island of 1 x 1 devices can't be shared evenly"),
        (IslandsConfig(2, 2, processes=2), "islands.processes is 2, and islands on devices are of this process"),
    ],
)
def test_settings_of_processes_that_cannot_be(tiny_store, islands, says):
    config = tiny_config(tiny_store, islands=replace(islands, segments=1), parallel=ParallelConfig(1, 1, "block"))
    with pytest.raises(ConfigError, match=says):
        check(config)


def test_chunks_are_bytes(tiny_store):
    assert setting_of(tiny_config(tiny_store, islands=replace(TWO, chunk_mb=0.5))).chunk_bytes == 512 * 1024


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
made.add_node(num_cpus=2)
made.add_node(num_cpus=2)
print(made.address, flush=True)
sys.stdin.read()
made.shutdown()
"""


@pytest.fixture(scope="module")
def cluster():
    """The address of a Ray cluster of three nodes of two cores each. Ray forks, so another process starts it."""
    pytest.importorskip("ray", reason="Ray is not installed (areca[ray])")
    paths = os.pathsep.join(p for p in sys.path if p)
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": paths}
    made = subprocess.Popen(
        [sys.executable, "-c", CLUSTER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | quiet,
        text=True,
    )
    with made, pytest.MonkeyPatch.context() as patch:
        address = next(line.strip() for line in made.stdout if line[:1].isdigit())
        patch.setenv("RAY_ADDRESS", address)
        yield address
        import ray

        ray.shutdown()
        made.stdin.close()


@pytest.mark.slow
def test_two_islands_on_a_ray_cluster_have_that_digest_too(one, tiny_store, tmp_path, cluster):
    place, result = one
    two = train(meshes(tiny_store, replace(TWO, on="ray")), tmp_path / "two")
    assert two["parameters_sha256"] == result["parameters_sha256"]
    assert numbers(tmp_path / "two") == numbers(place)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_actor_that_is_killed_is_started_again_and_the_bits_are_the_same(long_run, islands, tmp_path, cluster):
    config, _, result = long_run
    killed = Disturbance(lambda: islands()[0].channels[0].kill())
    lost = train(
        replace(config, islands=replace(TWO, on="ray")), tmp_path / "run", listener=killed.listen, say=killed.say
    )
    assert lost["parameters_sha256"] == result["parameters_sha256"]
    events = [e["event"] for e in read_events(tmp_path / "run") if e["event"].startswith("island_")]
    assert events == ["island_lost", "island_joined"]


@pytest.mark.slow
def test_a_cluster_that_is_too_small_is_refused(tiny_store, tmp_path, cluster):
    with pytest.raises(
        ConfigError,
        match=r"islands.count is 4, which needs 8 CPUs .*, and the Ray cluster has 6",
    ):
        train(tiny_config(tiny_store, islands=IslandsConfig(4, 4, on="ray")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_no_cluster_listens_is_refused_at_once(monkeypatch, address):
    # Ray itself tries again for minutes.
    ray = pytest.importorskip("ray", reason="Ray is not installed (areca[ray])")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=f"answers at RAY_ADDRESS={address}: Connection refused; start"):
        rays.connect()
    assert time.monotonic() - started < 10
