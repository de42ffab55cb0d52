"""A server that speaks S3 (moto's, a process of its own), and a link to it that tests cut."""

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


class Link:
    """A port of this machine that leads to another, until it is cut: connections end, new ones are refused."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.left: int | None = None  # bytes of answers after which it is cut by itself
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.mend()
        assert self._listener
        self.port = self._listener.getsockname()[1]

    def mend(self) -> None:
        """Leads there again."""
        self.left = None
        self._listener = socket.create_server(("127.0.0.1", getattr(self, "port", 0)))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def cut(self) -> None:
        """Leads nowhere."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self.cuts += 1
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            for one in self._open:
                one.close()
            self._open = []

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near = listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self._open += [near, far]
            threading.Thread(target=self._carry, args=[near, far], daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        try:
            while True:
                for one in select.select([near, far], [], [])[0]:
                    data = one.recv(65536)
                    if not data:
                        return None
                    if one is far and self.left is not None:
                        data, self.left = data[: self.left], self.left - len(data)
                        near.sendall(data)
                        if self.left <= 0:
                            return self.cut()
                    else:
                        (far if one is near else near).sendall(data)
        except (OSError, ValueError):
            return None
        finally:
            near.close()
            far.close()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of a server that speaks S3."""
    for package in ("s3fs", "moto", "flask_cors"):
        pytest.importorskip(package, exc_type=ImportError)
    env = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true"}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
    )
    with process:
        assert process.stdout
        yield int(process.stdout.readline())
        process.terminate()


@pytest.fixture(scope="session")
def the_link(s3_port: int) -> Link:
    """One for all tests, so that one client serves them."""
    return Link(s3_port)


@pytest.fixture
def link(the_link: Link, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """An empty bucket `lab` behind a link, and a cache of the test's own; a lost link is waited for shortly."""
    import fsspec

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{the_link.port}")
    monkeypatch.setenv("ARECA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ARECA_REMOTE_SECONDS", "1")
    the_link.cut()
    the_link.mend()
    the_link.cuts = 0
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    if fs.exists("lab"):
        fs.rm("lab", recursive=True)
    fs.mkdir("lab")
    yield the_link
    the_link.left = None
