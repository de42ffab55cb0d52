"""Saving, loading and digesting a state stream: memory holds the state and a few of its leaves, never a second state.

Processes of their own read the peak of their resident memory from /proc. The state has 24 leaves of 8 MiB, so that a
second copy of it would be 192 MiB.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

LEAVES, LEAF = 24, 8  # MiB
FEW = 6 * LEAF

SCRIPT = """
    import json, sys
    from pathlib import Path
    from areca import runtime
    runtime.prepare(1, devices=int(sys.argv[3]))
    import jax, jax.numpy as jnp, numpy as np
    from areca.train.checkpoint import Checkpoints
    from areca.train.identity import parameters_sha256

    LEAVES, LEAF = 24, 8
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    lies = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    make = jax.jit(lambda i: jnp.arange(LEAF * 2**18, dtype=jnp.float32) * i, out_shardings=lies)
    example = {f"leaf{i:02}": jax.ShapeDtypeStruct((LEAF * 2**18,), jnp.float32, sharding=lies) for i in range(LEAVES)}
    small = {"x": jnp.ones(3)}

    def resident(what):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024

    def peak(function, *arguments, **options):
        # MiB beyond what is resident before.
        before = resident("VmRSS:")
        Path("/proc/self/clear_refs").write_text("5")
        value = function(*arguments, **options)
        return resident("VmHWM:") - before, value

    def save():
        checkpoints.save(2, state, {})
        checkpoints.wait()

    found = {}
    with Checkpoints(sys.argv[2], keep_last=9) as checkpoints:
        if sys.argv[1] == "save":
            checkpoints.save(1, small, {})
            checkpoints.wait()
            state = jax.block_until_ready({name: make(float(i + 1)) for i, name in enumerate(example)})
            found["save"], _ = peak(save)
            found["digest"], found["sha256"] = peak(parameters_sha256, state)
        else:
            checkpoints.restore(1, small)
            found["part"], (part, _) = peak(checkpoints.restore, 2, {"leaf05": example["leaf05"]}, part=True)
            assert list(part) == ["leaf05"] and bool(jnp.array_equal(part["leaf05"], make(6.0)))
            found["load"], (state, _) = peak(checkpoints.restore, 2, example)
            found["sha256"] = parameters_sha256(state)
    print(json.dumps(found))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the kernel keeps no peak to begin anew")
@pytest.mark.parametrize("devices", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_a_state_is_saved_loaded_and_digested_leaf_by_leaf(tmp_path, devices):
    def run(what: str) -> dict:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(SCRIPT), what, str(tmp_path), str(devices)]
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_", "JAX_", "NPROC"))}
        done = subprocess.run(command, env=keep | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    saved, loaded = run("save"), run("load")
    assert saved["sha256"] == loaded["sha256"]
    size = sum(p.stat().st_size for p in Path(tmp_path / "2").rglob("*") if p.is_file())
    assert size > LEAVES * LEAF * 2**20
    assert saved["save"] < FEW
    assert saved["digest"] < FEW
    assert loaded["part"] < FEW
    assert LEAVES * LEAF - FEW < loaded["load"] < LEAVES * LEAF + 2 * FEW  # on a busy machine more leaves wait at once
