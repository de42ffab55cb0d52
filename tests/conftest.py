"""Settings of every test: 8 CPU devices, strict dtypes, rank promotion refused, shapes checked at call time."""

import os
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

from areca import runtime

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the tests' time is compiling programs that run once, so XLA is told to leave out its costly passes, and to
# write loops by its older emitters: a training step is compiled in a sixth of the time. `make test-all` compiles as
# users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# Programs compiled by one test serve the next, also in other processes, and none come from outside of the tests.
os.environ.setdefault("ARECA_CACHE", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "areca"))
runtime.prepare()  # before jax starts: runs in this process then have `threads` 0

# Shapes in annotations are checked at every call where bare arrays meet. (Modules that define parameter trees are left
# out: jax rebuilds those dataclasses with leaves that are no arrays.)
install_import_hook(["areca.model.attention", "areca.model.loss"], "checked.check")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def shared_data():
    """`shared_data("laws/x.csv")`: the path of a published data file; the test is skipped where it is absent."""

    def find(name: str) -> Path:
        path = SHARED_DATA / name
        if not path.exists():
            pytest.skip(f"published data {name} is not on this machine")
        return path

    return find


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The token store of tests/tiny.py."""
    from tiny import build_tiny_store

    return build_tiny_store(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_run(tiny_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of tests/tiny.py's configuration. Copy it to change it."""
    from areca.train.loop import train
    from tiny import tiny_config

    run_dir = tmp_path_factory.mktemp("tiny") / "run"
    train(tiny_config(tiny_store), run_dir)
    return run_dir
