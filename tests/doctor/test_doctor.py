"""What a machine is said to have, against what it has; what would go wrong, on machines made of files."""

import json
import os
import resource
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from areca.cli.main import main
from areca.doctor import devices, software, storage, system
from areca.doctor.diagnose import diagnose, probes
from areca.doctor.finding import Finding, size


def says(finding):
    return [p.says for p in finding.problems]


def machine(root, files):
    """A file tree as a system shows it: {"proc/meminfo": "..."}."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def meminfo(available_gib, swap_gib=0, swap_free_gib=0):
    kib = {"MemTotal": 16, "MemAvailable": available_gib, "SwapTotal": swap_gib, "SwapFree": swap_free_gib}
    return "\n".join(f"{name}: {int(gib * 2**20)} kB" for name, gib in kib.items())


# processors


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0.5),
        (
            {
                "proc/self/cgroup": "0::/pod/own",
                "sys/fs/cgroup/pod/cpu.max": "200000 100000",
                "sys/fs/cgroup/pod/own/cpu.max": "max 100000",
            },
            2.0,
        ),
    ],
)
def test_the_quota_of_a_container_is_the_smallest_of_its_groups(tmp_path, files, quota):
    assert system.cpu_quota(machine(tmp_path, files)) == quota


def test_fewer_processors_by_quota_than_seen_is_a_problem_with_the_setting_to_make(tmp_path, monkeypatch):
    monkeypatch.setattr(system.runtime, "available_cores", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    found = system.processors(machine(tmp_path, {"sys/fs/cgroup/cpu.max": "250000 100000"}))
    assert found.values["quota"] == 2.5
    assert len(found.problems) == 1
    assert "may use 2.5 processors of the 4" in says(found)[0]
    assert "set threads = 2" in says(found)[0]
    assert says(system.processors(machine(tmp_path, {"sys/fs/cgroup/cpu.max": "400000 100000"}))) == []
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert "the load is 9.0 on 4 processors" in says(system.processors(tmp_path))[0]


# memory


def test_memory_is_what_the_system_says():
    found = system.memory()
    assert found.values["total_bytes"] == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.02
    )


def test_the_limit_of_a_container_counts_and_idle_pages_are_free(tmp_path):
    files = {"proc/meminfo": meminfo(12), "proc/self/cgroup": "4:memory:/job\n0::/", "sys/fs/cgroup/memory.max": "max"}
    v1 = "sys/fs/cgroup/memory/job/memory"
    files |= {f"{v1}.limit_in_bytes": str(8 << 30), f"{v1}.usage_in_bytes": str(5 << 30)}
    files |= {f"{v1}.stat": f"cache 1\ntotal_inactive_file {3 << 30}"}
    found = system.memory(machine(tmp_path, files))
    assert (found.values["limit_bytes"], found.values["limit_used_bytes"]) == (8 << 30, 2 << 30)
    assert found.values["usable_bytes"] == 6 << 30
    assert says(found) == []


@pytest.mark.parametrize(
    ("available", "swap", "swap_free", "stops", "words"),
    [
        (12, 0, 0, False, []),
        (1, 0, 0, False, ["1.0 GiB of memory are left;"]),
        (0.1, 4, 4, True, ["102.4 MiB of memory are left and the rest would go to swap"]),
        (1, 4, 1, False, ["1.0 GiB of memory are left and", "3.0 GiB are in swap already"]),
    ],
)
def test_too_little_memory(tmp_path, available, swap, swap_free, stops, words):
    found = system.memory(machine(tmp_path, {"proc/meminfo": meminfo(available, swap, swap_free)}))
    assert len(found.problems) == len(words)
    assert all(said.startswith(word) for said, word in zip(says(found), words, strict=True))
    assert any(p.stops for p in found.problems) == stops


# limits and clock


def test_limits_are_those_of_ulimit():
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert system.limits().values["open_files"] == (None if soft == resource.RLIM_INFINITY else soft)
    found = Finding(values={"open_files": 256, "file_size": 1 << 20, "cpu_seconds": 60, "address_space": 1 << 30})
    system.judge_limits(found, {})
    assert [p.stops for p in found.problems] == [False, True, True, True]
    assert all("`ulimit -" in said for said in says(found))


def test_a_clock_that_was_never_set(tmp_path):
    assert says(system.clock()) == []
    assert says(system.clock(now=1000.0))[0].startswith("the clock says 1970-01-01;")


# disk and caches


def test_the_disk_is_measured_and_left_as_it_was(tmp_path):
    found = storage.disk(tmp_path / "runs" / "later")
    assert found.values["directory"] == str(tmp_path)
    assert found.values["free_bytes"] == pytest.approx(
        os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize, rel=0.1
    )
    assert found.values["locks"] is True
    assert 1e5 < found.values["write_bytes_per_second"] < 1e12
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_slow_read_only_or_without_locks(tmp_path, monkeypatch):
    usage = storage.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda p: usage._replace(free=100 << 20))
    full = storage.disk(tmp_path)
    assert full.problems[0].stops
    assert full.problems[0].says.startswith(f"100.0 MiB are free at {tmp_path}")
    monkeypatch.undo()
    monkeypatch.setattr(storage, "SLOW", 1e15)
    assert any("put runs on a faster disk" in s for s in says(storage.disk(tmp_path)))
    monkeypatch.undo()

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(storage.fcntl, "flock", refuse)
    assert [p.stops for p in storage.disk(tmp_path).problems if "without locks" in p.says] == [True]
    monkeypatch.undo()
    monkeypatch.setattr(storage.tempfile, "TemporaryDirectory", lambda **_: refuse())
    assert says(storage.disk(tmp_path))[-1].startswith(f"{tmp_path} can't be written (Operation not supported);")


def test_small_shared_memory_and_a_cache_that_can_not_be_written(tmp_path, monkeypatch):
    usage = storage.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda p: usage._replace(total=64 << 20, free=64 << 20))
    assert "has 64.0 MiB" in says(storage.shared_memory(tmp_path))[0]
    assert says(storage.shared_memory(tmp_path / "none")) == []
    (tmp_path / "one").write_bytes(b"x" * 1000)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "two").write_bytes(b"x" * 24)
    found = storage.compile_cache(tmp_path)
    assert (found.values["bytes"], found.values["files"], found.values["writable"]) == (1024, 2, True)

    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    file = tmp_path / "one"
    assert says(storage.compile_cache(file / "compiled")) == [
        f"every process compiles its programs anew, as {file / 'compiled'} can't be written ({file} is a file); set "
        "ARECA_CACHE to a directory that can, or free some of its disk."
    ]
    before = sorted(tmp_path.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as where the disk takes 4 KiB more
    try:
        assert "can't be written (File too large);" in says(storage.compile_cache(tmp_path / "new"))[0]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.rglob("*")) == before

    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(storage.tempfile, "TemporaryFile", refuse)
    assert "(Read-only file system); set ARECA_CACHE" in says(storage.compile_cache(tmp_path))[0]


def test_runs_can_not_go_where_a_file_is(tmp_path):
    (tmp_path / "README.md").touch()
    for place in (tmp_path / "README.md", tmp_path / "README.md" / "runs"):
        assert [p.says for p in storage.disk(place).problems if p.stops] == [
            f"{tmp_path / 'README.md'} is a file, where the directory of runs must be; give another with --out."
        ]


def test_a_cache_that_can_not_be_used_is_one_sentence_and_stops_nothing(tmp_path):
    (tmp_path / "file").touch()
    code = "from areca import runtime; runtime.prepare(); import jax; print(jax.jit(lambda x: x + 1)(1))"
    env = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | {"ARECA_CACHE": str(tmp_path / "file")}, capture_output=True, text=True
    )
    assert done.stdout == "2\n"
    assert done.stderr == (
        f"areca: compiled programs are not kept, as {tmp_path / 'file' / 'compiled'} can't be written "
        f"({tmp_path / 'file'} is a file); set ARECA_CACHE to a directory that can, or free some of its disk.\n"
    )


# software


def test_versions_that_do_not_fit():
    have = dict.fromkeys(software.CORE, "1.0") | {"jax": "0.10.2", "jaxlib": "0.10.2"}
    assert says(software.versions(have)) == []
    older = software.versions(have | {"jaxlib": "0.9.9"}).problems
    assert [(p.stops, "`pip install jax==0.10.2 jaxlib==0.10.2`" in p.says) for p in older] == [(False, True)]
    newer = software.versions(have | {"jaxlib": "0.11.0"}).problems
    assert [(p.stops, "`pip install jax==0.11.0 jaxlib==0.11.0`" in p.says) for p in newer] == [(True, True)]
    del have["grain"]
    assert says(software.versions(have)) == [
        "grain is not installed; `pip install -e .` in Areca's directory brings it."
    ]
    without = software.versions(
        {name: version for name, version in have.items() if name != "llvmlite"} | {"grain": "1"}
    )
    assert "ARECA_KERNELS=0" in says(without)[0]
    assert not without.problems[0].stops
    assert "this is Python 3.10" in says(software.versions({**have, "grain": "1"}, python=(3, 10)))[0]


@pytest.mark.parametrize(
    ("variables", "words", "stops"),
    [
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}, [], False),
        ({"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}, ["XLA_FLAGS has --xla_cpu_enable_fast_math=true"], False),
        ({"JAX_DISABLE_JIT": "1", "JAX_ENABLE_X64": "0"}, ["JAX_DISABLE_JIT is 1"], True),
        ({"JAX_ENABLE_X64": "true"}, ["JAX_ENABLE_X64 is true"], False),
    ],
)
def test_variables_that_change_what_is_computed(variables, words, stops):
    found = software.environment({"HOME": "/home/ada", "WANDB_API_KEY": "secret", **variables})
    assert found.values == variables  # and nothing else of the environment
    assert len(found.problems) == len(words)
    assert all(said.startswith(word) for said, word in zip(says(found), words, strict=True))
    assert any(p.stops for p in found.problems) == stops


# devices


def printing(value):
    return [sys.executable, "-c", f"print({json.dumps(value)!r})"]


def device(kind, platform, **more):
    return {
        "kind": kind,
        "platform": platform,
        "count": 1,
        "flops": {},
        "bytes_per_second": None,
        "memory_bytes": None,
    } | more


def test_devices_are_measured(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    found = devices.devices()
    (cpu,) = found.values["devices"]
    assert (found.values["backend"], cpu["kind"], cpu["count"]) == ("cpu", "cpu", 3)
    # From a slow core under load to a large server.
    assert 1e8 < cpu["flops"]["float32"] < 1e14
    assert 1e7 < cpu["bytes_per_second"] < 1e13
    assert 1e7 < cpu["few_rows"]["ours"] < 1e14
    assert 1e7 < cpu["few_rows"]["xla"] < 1e14
    assert "GFLOP/s by our kernel" in found.lines[1]


def test_a_kernel_that_cannot_be_made_is_a_problem_that_stops_nothing():
    cpu = device("cpu", "cpu", few_rows={"rows": 16, "xla": 1e9, "why": "LLVM can't be loaded; set ARECA_KERNELS=0"})
    found = devices.devices(printing({"backend": "cpu", "devices": [cpu]}))
    assert says(found) == ["LLVM can't be loaded; set ARECA_KERNELS=0."]
    assert not found.problems[0].stops


def test_a_chip_far_below_its_peak_and_one_that_nobody_knows(tmp_path):
    # NVIDIA H200 data sheet: 989.5 TFLOP/s in bfloat16, dense.
    fast = device("NVIDIA H200", "gpu", flops={"bfloat16": 700e12, "float32": 40e12})
    slow = device("NVIDIA H200", "gpu", flops={"bfloat16": 98.95e12})
    other = device("Palm Processor 1", "gpu", flops={"bfloat16": None})
    assert says(devices.devices(printing({"backend": "gpu", "devices": [fast]}))) == []
    assert (
        "reaches 10% of its published peak" in says(devices.devices(printing({"backend": "gpu", "devices": [slow]})))[0]
    )
    found = devices.devices(printing({"backend": "gpu", "devices": [other]}))
    assert "Palm Processor 1 is not in the table of chips" in says(found)[0]
    assert "FLOP/s could not be measured" in found.lines[0]


def test_a_gpu_that_jax_does_not_use(tmp_path, monkeypatch):
    here = machine(tmp_path, {"proc/driver/nvidia/version": "570"})
    cpu = printing({"backend": "cpu", "devices": [device("cpu", "cpu")]})
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert "`pip install -e '.[cuda]'`" in says(devices.devices(cpu, here))[0]
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES hides it" in says(devices.devices(cpu, here))[0]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert "JAX_PLATFORMS is cpu; unset it" in says(devices.devices(cpu, here))[0]


def test_jax_that_dies_or_hangs_is_one_sentence(monkeypatch):
    found = devices.devices([sys.executable, "-c", "raise RuntimeError('no CUDA driver')"])
    assert found.problems[0].stops
    assert says(found) == ["jax can't start here (RuntimeError: no CUDA driver); mend that, or set JAX_PLATFORMS=cpu."]
    monkeypatch.setenv("XLA_FLAGS", "--xla_nonsense=1")
    monkeypatch.setenv("JAX_DEFAULT_MATMUL_PRECISION", "sharp")
    # What jax 0.10.2 says of a wrong value of each.
    for said, way in (
        ("Unknown flag in XLA_FLAGS: --xla_nonsense=1", "unset XLA_FLAGS (it is --xla_nonsense=1)."),
        (
            'Invalid value "sharp" for JAX flag jax_default_matmul_precision',
            "unset JAX_DEFAULT_MATMUL_PRECISION (it is",
        ),
    ):
        [problem] = says(devices.devices([sys.executable, "-c", f"import sys; sys.exit({said!r})"]))
        assert problem.startswith(f"jax can't start here ({said}); {way}")
    started = time.monotonic()
    found = devices.devices([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.5)
    assert time.monotonic() - started < 10
    assert "did not start and measure within 0.5 s" in says(found)[0]


# the whole


def test_a_probe_that_fails_is_said_and_the_others_go_on():
    def broken():
        raise KeyError("MemTotal")

    problem = Finding()
    problem.problem("no room; free some.", stops=True)
    found = diagnose(given={"memory": broken, "disk": lambda: problem})
    assert found["findings"]["memory"]["lines"] == ["could not be found out (KeyError: 'MemTotal')"]
    assert found["problems"] == [{"of": "disk", "says": "no room; free some.", "stops": True}]
    assert not found["ok"]
    assert diagnose(given={"memory": broken})["ok"]


def test_every_sentence_is_one_and_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "SLOW", 1e15)
    sentences = says(storage.disk(tmp_path)) + says(software.environment({"JAX_DEBUG_NANS": "1"}))
    assert sentences
    assert all(s.endswith(".") and s[:-1].count(". ") == 0 for s in sentences)


def test_the_verb_as_text_and_json(tmp_path, capsys, monkeypatch):
    kept = {n: p for n, p in probes(tmp_path).items() if n not in ("devices", "energy")}
    monkeypatch.setattr("areca.doctor.diagnose.probes", lambda runs: kept)
    assert main(["doctor", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["findings"]["versions"]["values"]["jax"] == __import__("jax").__version__
    bad = Finding()
    bad.problem("the disk is full; free some.", stops=True)
    monkeypatch.setattr("areca.doctor.diagnose.probes", lambda runs: kept | {"disk": lambda: bad})
    assert main(["doctor"]) == 1
    assert "STOPS A RUN (disk): the disk is full; free some." in capsys.readouterr().out


def test_the_whole_doctor_is_quick_and_leaves_nothing(tmp_path):
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "areca", "doctor", "--out", str(tmp_path)], capture_output=True, text=True, timeout=120,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )  # fmt: skip
    assert time.monotonic() - started < 60  # some seconds alone; other tests share the cores here
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    for name in ("versions", "devices", "energy", "memory", "disk", "compile cache", "clock"):
        assert f"\n{name} " in f"\n{done.stdout}"
    assert list(tmp_path.iterdir()) == []


def test_sizes():
    assert [size(v) for v in (None, 12, 1536, 3 << 30)] == ["unknown", "12 B", "1.5 KiB", "3.0 GiB"]


def test_every_extra_for_users_is_known():
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(software.EXTRAS) == set(project["optional-dependencies"]) - {"dev", "browser"}
