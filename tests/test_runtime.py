"""The process that numbers come from."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

from areca import runtime

PROGRAM = """
import sys
from areca import runtime
runtime.prepare(int(sys.argv[1]))
import jax, jax.numpy as jnp
compiled = jax.jit(lambda x: jnp.tanh(x) * jnp.exp(x)).lower(jnp.ones((4096, 512))).compile()
print(jax.config.jax_compilation_cache_dir)
print('outer_dimension_partitions":["2' in compiled.as_text())
print(jax.device_get(compiled(jnp.linspace(0, 1, 4096 * 512).reshape(4096, 512))).tobytes().hex()[:64])
"""


def _compiled(threads: int, cache, **environment: str) -> list[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_")) and k != "NPROC"}
    env |= {"ARECA_CACHE": str(cache), "JAX_PLATFORMS": "cpu"} | environment
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(threads)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_program_is_not_taken_from_the_cache_of_another_number_of_threads(tmp_path):
    # What two threads compile is cut for two, whether or not a process of one thread was there before.
    fresh = _compiled(2, tmp_path / "fresh")
    one = _compiled(1, tmp_path / "shared")
    two = _compiled(2, tmp_path / "shared")
    assert fresh[1] == "True"
    assert one[1] == "False"
    assert two[1:] == fresh[1:]
    assert one[0] != two[0]
    assert _compiled(2, tmp_path / "shared")[1:] == fresh[1:]  # and from its own cache


def test_a_cache_of_the_users_choice_is_kept_apart_too_and_a_parents_is_not_nested(tmp_path):
    of_one = _compiled(1, tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine"))[0]
    assert os.path.dirname(of_one) == str(tmp_path / "mine")
    of_child = _compiled(2, tmp_path, JAX_COMPILATION_CACHE_DIR=of_one)[0]
    assert os.path.dirname(of_child) == str(tmp_path / "mine")
    assert of_child != of_one


def test_a_part_of_a_compiled_program_is_put_right_and_none_is_ever_seen(tmp_path):
    place = Path(_compiled(1, tmp_path)[0])
    (entry,) = (e for e in place.iterdir() if "lambda" in e.name and e.name.endswith("-cache"))
    whole = entry.read_bytes()
    for part in (b"", whole[:100], whole[:-1]):
        entry.write_bytes(part)
        _compiled(1, tmp_path)
        assert len(entry.read_bytes()) > 0.9 * len(whole)
        assert not [e for e in place.iterdir() if e.name.endswith(".part")]
    from jax._src import lru_cache

    cache = lru_cache.LRUCache(str(tmp_path / "c"), max_size=-1)
    value, stop, torn = bytes(1 << 22), threading.Event(), []

    def read():
        while not stop.is_set():
            found = cache.get("k")
            if found is not None and len(found) != len(value):
                torn.append(len(found))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(30):
        cache.put("k", value)
    stop.set()
    reader.join()
    assert not torn


def test_a_field_of_cpuinfo_is_the_first_cores(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A: one\ncpu cores\t: 8\n\nprocessor\t: 1\nmodel name\t: B\n")
    assert runtime.cpuinfo("model name", info) == "A: one"
    assert runtime.cpuinfo("cpu cores", info) == "8"
    assert runtime.cpuinfo("flags", info) is None
    assert runtime.cpuinfo("model name", tmp_path / "absent") is None


def test_one_module_reads_cpuinfo():
    source = Path(runtime.__file__).parent
    readers = [str(p.relative_to(source)) for p in source.rglob("*.py") if "/proc/cpuinfo" in p.read_text("utf-8")]
    assert readers == ["runtime.py"]
