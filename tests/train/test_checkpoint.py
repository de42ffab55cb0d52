"""Checkpoints: every bit returns, every damage is found, nothing half-written counts."""

import errno
import json
import logging
import shutil
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from areca.errors import CheckpointError, ConfigError
from areca.train import checkpoint
from areca.train.checkpoint import Checkpoints
from areca.train.checkpoint_orbax import checkpointer


def _state(value: float = 1.0):
    return {
        "params": {"w": jnp.full((4, 3), value, jnp.float32), "b": jnp.arange(5, dtype=jnp.int32)},
        "step": jnp.int32(0),
    }


def _saved(directory, *steps: int, **options) -> Checkpoints:
    checkpoints = Checkpoints(directory, **({"keep_last": 9} | options))
    for step in steps:
        checkpoints.save(step, _state(step), {"step": step, "tokens": 100 * step})
    checkpoints.wait()
    return checkpoints


def _bytes(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_every_bit_returns(tmp_path):
    # Quiet and signalling NaNs with payloads, -0.0, denormals: bit patterns, not values.
    patterns = np.array([0x7FC00001, 0xFF800123, 0x80000000, 0x7FA00001, 0x00000001, 0xFF800000], np.uint32)
    state = {
        "float32": jnp.asarray(patterns.view(np.float32)),
        "bfloat16": jnp.asarray(np.array([0x7FC1, 0x8000, 0xFF81, 0x0001], np.uint16).view(ml_dtypes.bfloat16)),
        "key": jax.random.PRNGKey(2**31 + 7),
        "scalars": (jnp.int32(-3), jnp.float32(0.1), jnp.bool_(True), jnp.int8(-128)),
        "numpy": np.array([1, 2**40], np.int64),
        "python": [7, 0.1, True],
        "empty": jnp.zeros((0, 3), jnp.bfloat16),
        "none": None,
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {"tokens": 2**53, "ratio": 0.1})
        back, host = checkpoints.restore(1, state)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert _bytes(back) == _bytes(state)
    assert [x.dtype for x in jax.tree.leaves(back["scalars"])] == [x.dtype for x in jax.tree.leaves(state["scalars"])]
    assert back["python"] == [7, 0.1, True]
    assert [type(x) for x in back["python"]] == [int, float, bool]
    assert back["empty"].shape == (0, 3)
    assert back["empty"].dtype == jnp.bfloat16
    assert host == {"tokens": 2**53, "ratio": 0.1}


def test_the_state_may_be_donated_and_numpy_arrays_changed_right_after_save(tmp_path):
    change = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    array, counts = jnp.arange(300_000, dtype=jnp.float32), np.arange(5)
    expected = _bytes((array, counts))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, (array, counts), {})
        change(array).block_until_ready()
        counts[:] = -1
        back, _ = checkpoints.restore(1, (jax.ShapeDtypeStruct((300_000,), jnp.float32), counts))
    assert _bytes(back) == expected


def test_a_sharded_state_returns_to_its_shards_or_to_others(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    rows, columns = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*p)) for p in (("data",), (None, "data"))
    )
    array = jax.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), rows)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": array}, {})
        same, _ = checkpoints.restore(1, {"w": array})
        other, _ = checkpoints.restore(1, {"w": jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=columns)})
    assert same["w"].sharding == rows
    assert other["w"].sharding == columns
    assert _bytes(same) == _bytes(other) == _bytes({"w": array})


def test_a_restored_checkpoint_belongs_to_another_process_too(tmp_path):
    _saved(tmp_path, 3).close()
    with Checkpoints(tmp_path, writable=False) as checkpoints:
        entry = checkpoints.latest()
        assert entry is not None
        state, host = checkpoints.restore(entry, _state())
    assert _bytes(state) == _bytes(_state(3))
    assert host == {"step": 3, "tokens": 300}


def test_an_empty_directory_has_no_latest(tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest() is None
    with Checkpoints(tmp_path / "absent", writable=False) as checkpoints:
        assert checkpoints.latest() is None
    assert not (tmp_path / "absent").exists()


def _sharded_state(value: float = 1.0):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", "model"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return {
        "w": jax.device_put(np.full((64, 32), value, np.float32), cut),
        "step": jax.device_put(np.int32(value), whole),
    }


def _flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :]


@pytest.mark.parametrize("state", [_state, _sharded_state], ids=["one device", "mesh 2x2"])
def test_a_flipped_bit_in_any_file_is_found_before_orbax_loads(tmp_path, monkeypatch, state):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state(1), {})
        checkpoints.save(2, state(2), {})
        checkpoints.wait()
        assert _bytes(checkpoints.restore(2, state())[0]) == _bytes(state(2))
    files = sorted(p for p in (tmp_path / "2").rglob("*") if p.is_file())
    assert len(files) > 3
    assert sum(p.stat().st_size for p in files) > sum(leaf.nbytes for leaf in jax.tree.leaves(state()))
    monkeypatch.setattr(Checkpoints, "_load", lambda *_: pytest.fail("orbax was asked to load a damaged checkpoint"))
    for path in files:
        whole = path.read_bytes()
        for at in {0, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(_flipped(whole, at))
            with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError) as caught:
                checkpoints.restore(2, state())
            message = str(caught.value)
            assert "checkpoint step 2" in message
            assert path.relative_to(tmp_path / "2").as_posix() in message
            assert "step 1 is intact: go on from it with --resume --from-step 1" in message
        path.write_bytes(whole)


def test_a_flipped_bit_anywhere_in_the_record_is_found_and_costs_no_checkpoint(tmp_path):
    _saved(tmp_path, 1, 2).close()
    record = tmp_path / "record.json"
    whole = record.read_bytes()
    for at in range(len(whole) - 1):  # the last byte is a line feed behind the value
        record.write_bytes(_flipped(whole, at))
        with pytest.raises(CheckpointError):
            _verify_all(tmp_path)
        assert (tmp_path / "1").is_dir()
        assert (tmp_path / "2").is_dir()  # also where it is the number of the step that was flipped
    record.write_bytes(whole)
    assert _verify_all(tmp_path) == [1, 2]


def _verify_all(directory) -> list[int]:
    with Checkpoints(directory) as checkpoints:
        return [checkpoints.verify(entry).step for entry in checkpoints.entries()]


def test_a_missing_an_extra_and_a_truncated_file_are_found(tmp_path):
    _saved(tmp_path, 5).close()
    victim = next(p for p in (tmp_path / "5").rglob("*") if p.is_file() and p.parent.name == "d")
    whole = victim.read_bytes()

    def refusal() -> str:
        with Checkpoints(tmp_path) as checkpoints, pytest.raises(CheckpointError) as caught:
            checkpoints.restore(5, _state())
        return str(caught.value)

    victim.unlink()
    assert f"{victim.name} is missing" in refusal()
    victim.write_bytes(whole[:-1])
    assert victim.name in refusal()
    victim.write_bytes(whole)
    (tmp_path / "5" / "stray").touch()
    assert "stray is not one that was saved" in refusal()
    assert "no older checkpoint is intact" in refusal()
    (tmp_path / "5" / "stray").unlink()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.restore(5, _state())


def test_a_directory_that_is_gone_is_said(tmp_path):
    _saved(tmp_path, 1, 2, 3).close()
    shutil.rmtree(tmp_path / "3")
    shutil.rmtree(tmp_path / "2")
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.missing == (2, 3)
        with pytest.raises(CheckpointError, match=r"step 3 .* directory is missing; .*--from-step 1\.$"):
            checkpoints.restore(3, _state())
        checkpoints.rewind(1)
        assert checkpoints.missing == ()
        checkpoints.save(2, _state(2), {})


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"checkpoints": [{"step": 1}]}', '{"checkpoints": [3]}', "\0" * 50]
)
def test_a_record_that_is_not_one_is_refused_and_nothing_is_swept(tmp_path, content):
    _saved(tmp_path, 1).close()
    (tmp_path / "record.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"record\.json can't be read"):
        Checkpoints(tmp_path)
    assert (tmp_path / "1").is_dir()


def test_a_lost_record_does_not_pass_for_a_new_run(tmp_path):
    _saved(tmp_path, 1).close()
    (tmp_path / "record.json").unlink()
    with pytest.raises(CheckpointError, match=r"record\.json is missing although there are checkpoints"):
        Checkpoints(tmp_path)
    assert (tmp_path / "1").is_dir()


def test_a_changed_entry_of_the_record_is_found(tmp_path):
    _saved(tmp_path, 1).close()
    record = json.loads((tmp_path / "record.json").read_text())
    record["checkpoints"][0]["host"]["tokens"] = 101
    (tmp_path / "record.json").write_text(json.dumps(record))
    with (
        Checkpoints(tmp_path) as checkpoints,
        pytest.raises(CheckpointError, match=r"its entry in record\.json differs"),
    ):
        checkpoints.restore(1, _state())


def test_what_a_killed_process_left_is_swept_by_the_next_writer_only(tmp_path):
    _saved(tmp_path, 1).close()
    shutil.copytree(tmp_path / "1", tmp_path / "2")  # committed, killed before its record
    (tmp_path / "3").mkdir()  # looks like a step to orbax
    (tmp_path / "4.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "5.orbax-checkpoint-tmp-1700000000").mkdir()
    (tmp_path / ".record.json.x1.tmp").touch()
    (tmp_path / "notes.txt").touch()  # not ours
    before = sorted(p.name for p in tmp_path.iterdir())
    with Checkpoints(tmp_path, writable=False) as reader:
        assert [e.step for e in reader.entries()] == [1]
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    with Checkpoints(tmp_path) as writer:
        assert [e.step for e in writer.entries()] == [1]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "notes.txt", "record.json"]
        writer.save(2, _state(2), {})


def test_the_last_and_every_so_many_steps_are_kept(tmp_path):
    with _saved(tmp_path, 2, 4, 5, 6, 8, 10, 11, keep_last=2, keep_every_steps=5) as checkpoints:
        assert [e.step for e in checkpoints.entries()] == [5, 10, 11]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "11", "5", "record.json"]


def test_a_deleted_checkpoint_leaves_the_record_before_the_disk(tmp_path, monkeypatch):
    with _saved(tmp_path, 1, keep_last=1) as checkpoints:
        recorded = []
        remove = shutil.rmtree

        def watch(path, **options):
            recorded.append([e["step"] for e in json.loads((tmp_path / "record.json").read_text())["checkpoints"]])
            remove(path, **options)

        monkeypatch.setattr(checkpoint.shutil, "rmtree", watch)
        checkpoints.save(2, _state(2), {})
        checkpoints.wait()
    assert recorded == [[2]]
    assert not (tmp_path / "1").exists()


def test_there_is_always_a_place_to_go_back_to_and_few_are_kept_for_it(tmp_path):
    # At every instant: the newest of all saves that lies 25 steps back is at most another 25 and a save further back
    # than it would be if all were kept, and two more than keep_last are there.
    saves = [3, 10, 20, 30, 33, 40, 50, 60, 70, 77, 80, 90, 100]
    with Checkpoints(tmp_path, keep_last=1, reach=25) as checkpoints:
        for i, step in enumerate(saves):
            checkpoints.save(step, {"x": jnp.zeros(1)}, {})
            checkpoints.wait()
            kept = [0, *(e.step for e in checkpoints.entries())]
            best, have = (max(k for k in [0, *of] if k <= max(0, step - 25)) for of in (saves[: i + 1], kept))
            assert best - have <= 25 + 10
            assert len(kept) - 1 <= 3
        checkpoints.reach = 0
        checkpoints.save(110, {"x": jnp.zeros(1)}, {})
        checkpoints.wait()
        assert [e.step for e in checkpoints.entries()] == [110]


def test_forgetting_what_comes_after_a_step_that_is_no_checkpoint(tmp_path):
    with _saved(tmp_path, 2, 4, 6) as checkpoints:
        checkpoints.forget(5)
        assert [e.step for e in checkpoints.entries()] == [2, 4]
        checkpoints.forget(0)
        assert checkpoints.latest() is None
        assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_latest_follows_the_record_after_a_rewind(tmp_path):
    with _saved(tmp_path, 10, 20, 30) as checkpoints:
        with pytest.raises(CheckpointError, match="no checkpoint of step 15; the record lists 10, 20, 30"):
            checkpoints.rewind(15)
        assert checkpoints.rewind(10).step == 10
        assert not (tmp_path / "30").exists()
        checkpoints.save(15, _state(15), {})
    with Checkpoints(tmp_path) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        assert latest.step == 15
        assert _bytes(checkpoints.restore(latest, _state())[0]) == _bytes(_state(15))


@pytest.mark.parametrize("step", [9, 10])
def test_a_save_that_is_not_past_the_latest_is_refused(tmp_path, step):
    with _saved(tmp_path, 10) as checkpoints, pytest.raises(CheckpointError, match="rewind to an earlier step first"):
        checkpoints.save(step, _state(), {})


def test_a_reader_can_not_save(tmp_path):
    _saved(tmp_path, 1).close()
    with Checkpoints(tmp_path, writable=False) as checkpoints:
        with pytest.raises(CheckpointError, match="reading only"):
            checkpoints.save(2, _state(), {})
        with pytest.raises(CheckpointError, match="reading only"):
            checkpoints.rewind(1)


def test_keeping_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"keep_last is 0"):
        Checkpoints(tmp_path / "c", keep_last=0)
    assert not (tmp_path / "c").exists()


def test_host_values_that_are_not_json_are_refused_before_anything_is_written(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="JSON"):
            checkpoints.save(1, _state(), {"loss": float("nan")})
        assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s | {"more": jnp.ones(2)}, "it has no more"),
        (lambda s: {"params": s["params"]}, "it has step, which this one lacks"),
        (
            lambda s: s | {"params": s["params"] | {"w": jnp.ones((4, 4))}},
            r"params\.w is float32\[4, 3\] .* float32\[4, 4\]",
        ),
        (lambda s: s | {"step": jnp.float32(0)}, r"step is int32\[\] .* float32\[\]"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_by_the_leaf_that_differs(tmp_path, change, said):
    with _saved(tmp_path, 1) as checkpoints, pytest.raises(CheckpointError, match=said):
        checkpoints.restore(1, change(_state()))


def test_an_error_in_the_background_surfaces_at_the_next_call_and_is_not_the_end(tmp_path, monkeypatch):
    with _saved(tmp_path, 1) as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(
                checkpoint, "digests", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left"))
            )
            checkpoints.save(2, _state(2), {})
            with pytest.raises(CheckpointError, match=r"disk is full: checkpoint step 2 .*\(step 1 is the latest"):
                checkpoints.save(3, _state(3), {})
            checkpoints.save(3, _state(3), {})
            with pytest.raises(CheckpointError, match="disk is full: checkpoint step 3"):
                checkpoints.wait()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "record.json"]
        checkpoints.save(4, _state(4), {})
        checkpoints.wait()
        assert [e.step for e in checkpoints.entries()] == [1, 4]


def test_check_does_not_wait_but_raises_what_has_failed(tmp_path, monkeypatch):
    with _saved(tmp_path) as checkpoints:
        go = threading.Event()
        monkeypatch.setattr(checkpoint, "digests", lambda _: go.wait(60) and 1 / 0)
        checkpoints.save(1, _state(), {})
        checkpoints.check()  # while it is being saved
        go.set()
        checkpoints._thread.join(60)
        with pytest.raises(CheckpointError, match="step 1 could not be saved"):
            checkpoints.check()


def test_a_save_of_a_megabyte_holds_training_up_for_less_than_50_ms(tmp_path):
    state = {f"layer{i}": jnp.ones((80, 80)) for i in range(40)}
    blocked = []
    with Checkpoints(tmp_path) as checkpoints:
        for step in range(1, 7):
            started = time.perf_counter()
            checkpoints.save(step, state, {})
            blocked.append(time.perf_counter() - started)
            checkpoints.wait()
    assert min(blocked) < 0.05


def test_a_save_that_failed_is_not_told_of_by_asyncio_again(caplog):
    checkpointer().close()
    error = ValueError("Error writing /runs/a/checkpoints/2.orbax-checkpoint-tmp/d/29a7: No space left on device")
    for fault in (error, ValueError("of something else")):  # as asyncio logs a future that nobody has asked
        logging.getLogger("asyncio").error(f"_GatheringFuture exception was never retrieved\nfuture: <{fault!r}>")
    assert [r.getMessage().splitlines()[1] for r in caplog.records if r.name == "asyncio"] == [
        "future: <ValueError('of something else')>"
    ]


def test_a_full_disk_is_one_sentence_and_the_earlier_checkpoint_stays_whole(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import sys
            import jax.numpy as jnp
            from areca.errors import CheckpointError
            from areca.train.checkpoint import Checkpoints

            names = [f"w{i}" for i in range(30)]  # other writes are on their way when the first is refused
            small, large = ({n: jnp.arange(length) for n in names} for length in (100.0, 20_000.0))
            with Checkpoints(sys.argv[1] + "/checkpoints") as checkpoints:
                checkpoints.save(1, small, {})
                checkpoints.wait()
                try:
                    checkpoints.save(2, large, {})
                    checkpoints.wait()
                except CheckpointError as error:
                    print(error)
                checkpoints.restore(1, small)
                checkpoints.save(2, small, {})
        """)
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=600k tmpfs "$1" && shift && exec "$@"',
        "sh",
        str(disk),
    ]
    if not shutil.which("unshare") or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("a small file system can't be mounted here")
    run = subprocess.run(
        [*mount, sys.executable, "-W", "error", str(script), str(disk)], capture_output=True, text=True, timeout=60
    )
    assert run.stdout.startswith("the disk is full: checkpoint step 2 could not be saved in "), run
    assert run.stdout.count("\n") == 1
    assert run.stderr == "", run.stderr
    assert run.returncode == 0
