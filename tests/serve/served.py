"""`areca serve` in a process of its own, as a user starts it, and how tests ask it."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.pathways.elsewhere.processes import without_devices


@dataclass
class Server:
    """A running server; `post` sends it a body as it is and returns status, headers and the JSON it answered."""

    process: subprocess.Popen
    url: str
    said: list[str]

    def post(self, body: bytes | dict[str, Any], kind: str = "application/json") -> tuple[int, dict[str, str], Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("/v1/completions", data, {"Content-Type": kind})

    def ask(self, path: str, data: bytes | None = None, headers: dict[str, str] | None = None):
        request = urllib.request.Request(self.url + path, data, headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, dict(answer.headers), json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), json.loads(error.read())

    def health(self) -> dict[str, Any]:
        return self.ask("/health")[2]


def start(run: Path, *options: str) -> Server:
    """`areca serve RUN` on a free port, once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "areca", "serve", str(run), "--port", "0", *options],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": without_devices(os.environ["XLA_FLAGS"]), "ARECA_REGION": "taiwan"},
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"is at (http://\S+)/v1;", line):
            return Server(process, found[1], said)
    raise AssertionError(f"the server ended with {process.wait()}: {said}")


def end(server: Server) -> str:
    """Stops it if it runs; what it said after it was there."""
    if server.process.poll() is None:
        server.process.terminate()
    return server.process.communicate(timeout=60)[1]
