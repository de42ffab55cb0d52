"""Built-in corpora: deterministic, versions recorded, missing packages named."""

import importlib.metadata
import inspect
import itertools
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from areca.data import corpora
from areca.data.build import build_store
from areca.data.corpora import docstrings, gather, versions
from areca.data.store import TokenStore
from areca.errors import DataError


def test_docstrings_are_those_of_python_itself():
    source = '''"""Module text."""
import x
if True:
    def hidden():
        """
        Two lines,
            the second indented.
        """
class A:
    "Class text."
    def method(self):
        r"""A \\d pattern."""
    async def other(self): "Async."
    def none(self): return "no docstring"
add_newdoc("numpy", "thing", """
    Attached text.

    More.
    """)
add_newdoc("numpy", "array", ("method", """Attached
    method."""))
'''
    assert docstrings(source.encode()) == [
        "Module text.", "Two lines,\n    the second indented.", "Class text.", "A \\d pattern.", "Async.",
        "Attached text.\n\nMore.", "Attached\nmethod.",
    ]  # fmt: skip
    assert docstrings(b"def broken(:\n") == []


def test_docstrings_equal_those_of_the_imported_module():
    found = docstrings(Path(textwrap.__file__).read_bytes())
    assert inspect.getdoc(textwrap.TextWrapper) in found
    assert inspect.getdoc(textwrap.dedent) in found


def test_chats_are_gathered_whole_in_a_fixed_order():
    pytest.importorskip("chitchat_dataset")
    chats = list(gather("chitchat"))
    first = chats[:50]
    assert first == list(itertools.islice(gather("chitchat"), 50))
    assert len(chats) == 7168  # the data set's own count
    assert 13 < sum(len(d.text) for d in chats) / 1e6 < 14
    assert all(line[:3] in ("A: ", "B: ") for line in first[0].text.splitlines()[:1])


def test_code_is_the_standard_library_without_its_tests():
    found = {d.source: d.text for d in gather("code")}
    assert found["python/textwrap.py"] == Path(textwrap.__file__).read_text()
    assert not [s for s in found if "/test/" in s or "/tests/" in s or "site-packages" in s]
    assert 500 < len(found) < 2000


def test_versions_name_what_the_text_depends_on():
    assert versions("code") == {"python": platform.python_version()}
    found = versions("docs")
    assert found == {"python": platform.python_version()} | {
        p: importlib.metadata.version(p) for p in ("numpy", "scipy", "jax")
    }


def test_a_missing_package_is_named_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(corpora.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install chitchat-dataset==0\.9\.0"):
        list(gather("chitchat"))

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(corpora.importlib.metadata, "version", absent)
    assert not corpora.installed("chitchat")
    with pytest.raises(DataError, match=r"pip install chitchat-dataset==0\.9\.0"):
        build_store(tmp_path / "out", ["chitchat"])
    assert not list(tmp_path.iterdir())


def test_an_unknown_corpus_is_refused():
    with pytest.raises(DataError, match="did you mean 'docs'"):
        gather("doc")


@pytest.mark.exhaustive
def test_the_documentation_builds_without_a_leak(tmp_path):
    build_store(tmp_path / "a", ["docs"], vocab_size=300)
    store = TokenStore.open(tmp_path / "a", verify=True)
    sizes = {c.name: c.bytes / 1e6 for c in store.corpora}
    assert 8 < sizes["docs"] < 13  # the packages hold 9 MB of docstrings before jax's
    for name in sizes:
        train, heldout = (
            {d.tobytes() for d in np.split(t, np.flatnonzero(t == store.eod_id) + 1)}
            for t in (np.asarray(store.tokens(name, split)) for split in ("train", "heldout"))
        )
        assert train & heldout == {b""}  # what follows the last end


def test_gathering_imports_none_of_the_packages_it_reads():
    script = (
        "import sys, itertools; from areca.data.corpora import gather\n"
        "list(itertools.islice(gather('docs'), 50)); list(itertools.islice(gather('chitchat'), 1))\n"
        "print(sorted({'jax', 'scipy', 'chitchat_dataset', 'grain'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_docstring_falls_on_the_side_of_its_file():
    # `docs` and `code` both hold the standard library: a docstring's group is the digest of the whole file.
    docs = {d.source: d.group for d in itertools.takewhile(lambda d: d.source < "python/b", gather("docs"))}
    code = {d.source: d.group for d in gather("code")}
    assert docs
    assert all(code[source] == group for source, group in docs.items())
