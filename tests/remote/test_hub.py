"""A hub's data sets, streamed by `areca corpus build` from a stand-in: a server of this machine with the hub's API.

What is asked of it is what huggingface_hub's own file system asks: a repository's commit, its tree, ranges of files.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest

from areca.data.build import build_store
from tiny import text

pytest.importorskip("huggingface_hub")


class Hub(ThreadingHTTPServer):
    """`commits[sha]` has the files of a commit of lab/books; `main` is the sha of its branch."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.main = ""
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answers)

    def commit(self, files: dict[str, bytes]) -> str:
        self.main = hashlib.sha1(json.dumps({n: d.hex() for n, d in files.items()}).encode()).hexdigest()
        self.commits[self.main] = files
        return self.main


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.asked.append(path)
        kind, _, rest = path.removeprefix("/api").removeprefix("/datasets/lab/books").lstrip("/").partition("/")
        revision, _, name = rest.partition("/")
        sha = self.server.main if revision in ("", "main") else revision
        files = self.server.commits.get(sha)
        if "/datasets/lab/books" not in path or files is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif kind in ("", "revision"):
            self._json({"id": "lab/books", "sha": sha, "private": False, "tags": [], "siblings": []})
        elif kind == "tree":
            self._json(self._tree(files, name, "recursive=True" in self.path or "recursive=true" in self.path))
        elif kind == "resolve" and name in files:
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            self._send(206, files[name][first : last + 1], {})
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _tree(self, files: dict[str, bytes], below: str, deep: bool) -> list[dict]:
        head = f"{below}/" if below else ""
        rows: dict[str, dict] = {}
        for name, data in files.items():
            if not name.startswith(head):
                continue
            top, slash, _ = name[len(head) :].partition("/")
            if slash:
                rows[head + top] = {"type": "directory", "path": head + top, "oid": "0" * 40, "size": 0}
            if deep or not slash:
                oid = hashlib.sha1(data).hexdigest()
                rows[name] = {"type": "file", "path": name, "oid": oid, "size": len(data)}
        return list(rows.values())

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def areca(endpoint: str, *argv: str, cache: Path) -> tuple[int, str]:
    """Exit code and what was said, by a process of its own: huggingface_hub reads its endpoint once."""
    env = {**os.environ, "HF_ENDPOINT": endpoint, "ARECA_CACHE": str(cache), "ARECA_REMOTE_SECONDS": "1"}
    done = subprocess.run([sys.executable, "-m", "areca", *argv], capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stderr


def test_a_data_set_of_a_hub_is_read_at_one_commit_that_the_store_names(hub, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    here = tmp_path / "here"
    here.mkdir()
    for i in range(2):
        table = pa.table({"text": [text(100 * i + j) for j in range(10)], "id": list(range(10))})
        pq.write_table(table, here / f"{i:05}.parquet")
    files = {f"data/{p.name}": p.read_bytes() for p in here.iterdir()} | {"README.md": b"# Books\n"}
    first, endpoint = hub.commit(files), f"http://127.0.0.1:{hub.server_port}"
    build = ("corpus", "build", "hf://datasets/lab/books/data/*.parquet", "--vocab-size", "300", "--heldout", "0.2")
    cache, out = tmp_path / "cache", tmp_path / "store"

    code, said = areca(endpoint, *build, "--out", str(out), cache=cache)
    assert code == 0, said
    meta = json.loads((out / "store.json").read_text())
    assert meta["inputs"]["sources"][0]["path"] == f"hf://datasets/lab/books@{first}/data/*.parquet"
    local = build_store(tmp_path / "local", [f"books={here}"], vocab_size=300, heldout_fraction=0.2)
    assert meta["fingerprint"] == local["fingerprint"]
    assert all(first in path for path in hub.asked if "/resolve/" in path)

    hub.commit(files | {"data/00000.parquet": files["data/00001.parquet"]})  # the branch goes on
    code, said = areca(endpoint, *build, "--out", str(out), cache=cache)
    assert (code, "built from other inputs" in said) == (2, True)
    pinned = ("corpus", "build", f"hf://datasets/lab/books@{first}/data/*.parquet", *build[3:])
    code, said = areca(endpoint, *pinned, "--out", str(out), cache=cache)
    assert (code, "built from the same inputs: reused" in said) == (0, True)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("hf://datasets/lab/none/*.parquet", "areca corpus: hf://datasets/lab/none/*.parquet can't be used ("),
        ("hf://datasets/lab/books/none", "areca corpus: hf://datasets/lab/books/none has no files; check"),
        ("offline", "areca corpus: hf://datasets/lab/books can't be reached ("),
    ],
)
def test_what_a_hub_has_not_or_no_network_gets_one_sentence(hub, tmp_path, word, says):
    hub.commit({"a.txt": b"text\n"})
    port = hub.server_port
    if word == "offline":
        word = "hf://datasets/lab/books"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    code, said = areca(
        f"http://127.0.0.1:{port}", "corpus", "build", word, "--out", str(tmp_path / "s"), cache=tmp_path / "cache"
    )
    assert (code, said.count("\n"), said[: len(says)]) == (2, 1, says)
