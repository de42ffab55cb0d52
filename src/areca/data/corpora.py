"""Built-in corpora: real text that installs without a hub, read from files of installed packages, never imported.

    docs      docstrings of the standard library, numpy, scipy and jax, and the language reference in pydoc_data.topics
    chitchat  dialogues of the PyPI package chitchat-dataset (BYU-PCCL chitchat-dataset, MIT)
    code      the standard library's own *.py, without its tests

Gathering is deterministic: files in sorted order, documents in the order of the file. The standard library differs
between Python versions and packages between releases; both are recorded in the store.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from areca.data.documents import Document
from areca.errors import DataError, closest

DOC_PACKAGES = ("numpy", "scipy", "jax")
SHORTEST_DOCSTRING = 200  # characters; shorter ones ("Return self.") are labels rather than prose
_TEST_DIRECTORIES = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Builtin:
    """A corpus that comes with packages: what it is, under which licence, and what `pip install` brings it."""

    name: str
    summary: str
    megabytes: int  # about, before duplicates are dropped
    licence: str
    install: str  # of pip, empty if nothing is needed
    packages: tuple[str, ...]  # distributions whose versions determine the text, beside Python's
    read: Callable[[], Iterator[Document]]


def _require(package: str, corpus: str, install: str) -> Path:
    """The directory of an installed package, found without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the corpus {corpus!r} reads {package}, not installed; `pip install {install}`.")
    return Path(next(iter(spec.submodule_search_locations)))


def _standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _python_files(root: Path) -> list[Path]:
    """The *.py under a directory, without tests, sorted by path."""
    return sorted(p for p in root.rglob("*.py") if not _TEST_DIRECTORIES.intersection(p.relative_to(root).parts[:-1]))


def _docs() -> Iterator[Document]:
    roots = [("python", _standard_library())]
    roots += [(name, _require(name, "docs", name)) for name in DOC_PACKAGES]
    topics = roots[0][1] / "pydoc_data" / "topics.py"
    for package, root in roots:
        for path in _python_files(root):
            data = path.read_bytes()
            if path == topics:
                texts = _topics(data)
            elif b'"""' in data or b"'''" in data:
                texts = docstrings(data)
            else:
                continue
            source = f"{package}/{path.relative_to(root).as_posix()}"
            # Whole files fall on one side: sibling methods share phrases, and `code` holds the same files.
            group = hashlib.sha256(data).digest()
            for text in texts:
                if len(text) >= SHORTEST_DOCSTRING:
                    yield Document(text, "docs", source, group)


def docstrings(data: bytes) -> list[str]:
    """The docstrings of a Python source, without indent, and the texts that numpy and scipy attach by `add_newdoc`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of old sources
            tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return []
    found: list[tuple[int, str]] = []
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=True)
            if text:
                found.append((node.body[0].lineno, text))
            stack.extend(node.body)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            stack.extend(n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found += [(node.lineno, t) for t in _new_docs(node.value)]
    return [text.strip() for _, text in sorted(found, key=lambda pair: pair[0])]


def _new_docs(call: ast.Call) -> list[str]:
    import inspect

    if getattr(call.func, "id", getattr(call.func, "attr", "")).strip("_") not in ("add_newdoc", "add_docstring"):
        return []
    parts: list[ast.expr] = []
    for argument in call.args:
        parts += argument.elts if isinstance(argument, ast.Tuple) else [argument]
    values = [p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str)]
    return [inspect.cleandoc(v) for v in values if "\n" in v]


def _topics(data: bytes) -> list[str]:
    for node in ast.parse(data).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            return [topics[key].strip() for key in sorted(topics)]
    return []


def _chitchat() -> Iterator[Document]:
    path = _require("chitchat_dataset", "chitchat", "chitchat-dataset==0.9.0") / "dataset.json"
    chats = json.loads(path.read_bytes())
    for key in sorted(chats):
        lines = []
        speakers: dict[str, str] = {}
        for turn in chats[key]["messages"]:
            for message in turn:
                speaker = speakers.setdefault(message["sender"], chr(ord("A") + len(speakers) % 26))
                lines.append(f"{speaker}: {message['text']}")
        yield Document("\n".join(lines), "chitchat", f"chitchat-dataset/{key}")


def _code() -> Iterator[Document]:
    root = _standard_library()
    for path in _python_files(root):
        relative = path.relative_to(root)
        if relative.parts[0] == "pydoc_data":
            continue  # its text is part of `docs`
        data = path.read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            continue  # a handful of sources declare another encoding
        yield Document(text, "code", f"python/{relative.as_posix()}", hashlib.sha256(data).digest())


BUILTIN: dict[str, Builtin] = {
    b.name: b
    for b in (
        Builtin("docs", "documentation prose of Python, numpy, scipy and jax", 10, "PSF, BSD-3-Clause, Apache-2.0",
                " ".join(DOC_PACKAGES), DOC_PACKAGES, _docs),
        Builtin("chitchat", "dialogues of two strangers", 14, "MIT",
                "chitchat-dataset==0.9.0", ("chitchat-dataset",), _chitchat),
        Builtin("code", "the Python standard library's source", 11, "PSF", "", (), _code),
    )
}  # fmt: skip


def gather(name: str) -> Iterator[Document]:
    """The documents of a built-in corpus. DataError names the package to install if it is missing."""
    if name not in BUILTIN:
        raise DataError(f"there is no built-in corpus {name!r}{closest(name, BUILTIN)}; choose {', '.join(BUILTIN)}.")
    return BUILTIN[name].read()


def versions(name: str) -> dict[str, str]:
    """What determines a built-in corpus' text: `{"python": "3.11.7", "numpy": ...}`. DataError if one is missing."""
    found = {"python": platform.python_version()} if name != "chitchat" else {}
    for package in BUILTIN[name].packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            install = BUILTIN[name].install
            raise DataError(f"the corpus {name!r} reads {package}, not installed; `pip install {install}`.") from None
    return found


def installed(name: str) -> bool:
    """Whether every package of a built-in corpus is there."""
    try:
        versions(name)
        return True
    except DataError:
        return False
