"""Imports point one way between the rooms, and nothing heavy is imported before it is needed.

The directions are those of docs/how-it-works.md; they are read off the source with ast, so an import inside a function
counts as much as one at the head of a module.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands import COMMANDS

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "areca"

# Modules that every room may use, and what each of them may use itself.
BASE = {
    "errors": set(),
    "files": {"errors"},
    "folders": {"errors", "files"},
    "chips": {"errors", "files"},
    "config": {"errors", "files", "model"},
    "runtime": {"errors", "files"},
    "counted": set(),
    "lawjson": {"errors", "files"},
    "remote": {"errors", "files", "runtime", "remote"},
}

# room -> the other rooms it may import. `model` and the four others that stand alone know nothing of each other.
ROOMS: dict[str, set[str]] = {
    "kernels": set(),
    "model": {"kernels"},
    "data": set(),
    "laws": set(),
    "footprint": set(),
    "pathways": set(),
    "track": set(),
    "watch": {"track", "footprint"},
    "doctor": {"footprint", "kernels"},
    "train": {"model", "data", "pathways", "footprint", "track"},
    "evals": {"model", "data"},
    "audit": {"model", "data"},
    "plan": {"laws", "model", "footprint"},
    "interop": {"model", "data", "train"},
    "serve": {"model", "data", "train", "footprint"},
    "report": set(),
    "study": {"model", "data", "laws", "footprint", "pathways", "train", "evals", "audit", "plan", "interop", "report"},
}
ROOMS["cli"] = set(ROOMS)
# report reads files, nothing else: it must be able to draw what another version or another tool wrote.
BASE_OF_ROOM = {"report": {"errors", "files", "counted", "lawjson"}}

WITHOUT_JAX = ("chips", "counted", "data", "footprint", "report", "track", "watch")
HEAVY = ("jax", "numpy", "scipy", "pyarrow", "matplotlib", "grain", "orbax", "optax", "tokenizers", "torch", "llvmlite")


def _imports(tree: ast.Module, package: tuple[str, ...]) -> set[str]:
    """Dotted names of all modules imported anywhere in `tree`, a file of `package` (("areca", "data"))."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            # `from areca import data` names the module in the alias.
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "areca" else {base}
    return found


def _violations(root: Path) -> list[str]:
    """`"laws/fit.py imports areca.model.counts"` for each import that goes against the directions."""
    found = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        room = relative.parts[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        if room not in ROOMS and room not in BASE:
            found.append(f"{relative} is in no room; add it to ROOMS in {Path(__file__).name}")
            continue
        if room in BASE:
            allowed = BASE[room]
        else:
            allowed = ROOMS[room] | {room} | BASE_OF_ROOM.get(room, set(BASE))
        for name in sorted(_imports(ast.parse(path.read_text("utf-8")), ("areca", *relative.parts[:-1]))):
            parts = name.split(".")
            if parts[0] == "areca" and parts[1:] and parts[1] not in allowed | {"__version__"}:
                found.append(f"{relative} imports {name}")
            if parts[0] in ("jax", "jaxlib") and room in WITHOUT_JAX:
                found.append(f"{relative} imports {name}, which {room} does without")
            if parts[0] == "torch" and room != "interop":
                found.append(f"{relative} imports {name}, which belongs to interop")
    return found


def test_imports_point_one_way():
    assert _violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "source", "says"),
    [
        ("laws/fit.py", "from areca.model.counts import six_nd", "laws/fit.py imports areca.model.counts"),
        ("data/order.py", "def f():\n    import areca.train", "data/order.py imports areca.train"),
        ("model/decoder.py", "from areca import data", "model/decoder.py imports areca.data"),
        ("model/decoder.py", "from ..laws import fit", "model/decoder.py imports areca.laws"),
        ("report/page.py", "from areca.config import RunConfig", "report/page.py imports areca.config"),
        ("train/loop.py", "from areca.cli import main", "train/loop.py imports areca.cli"),
        ("data/order.py", "import jax.numpy as jnp", "data/order.py imports jax.numpy, which data does without"),
        ("chips.py", "from areca.config import load", "chips.py imports areca.config"),
        ("chips.py", "import jax", "chips.py imports jax, which chips does without"),
        ("errors.py", "from areca.files import read_json", "errors.py imports areca.files"),
        ("kitchen/sink.py", "", "kitchen/sink.py is in no room; add it to ROOMS in test_imports.py"),
    ],
)
def test_an_import_against_the_directions_is_found(tmp_path, file, source, says):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)
    assert _violations(tmp_path) == [says]


PRINT_HEAVY = f"""
import runpy, sys
try:
    runpy.run_module("areca", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    assert not stop.code, stop.code
print("HEAVY", *sorted({set(HEAVY)!r} & sys.modules.keys()))
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_nothing_heavy(command):
    result = subprocess.run(
        [sys.executable, "-c", PRINT_HEAVY, *command.split(), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].split() == ["HEAVY"]
    assert f"areca {command}" in result.stdout
