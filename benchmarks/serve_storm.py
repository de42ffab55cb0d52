"""A crowd at `areca serve`: odd bodies, streams that are left half read, more texts than the queue holds.

Each round sends the same number of requests from as many clients at once, every kind among them. Every refusal must be
a JSON error object with a sentence, the server must answer afterwards and have nothing left to do, and its memory (RSS)
must stop growing: what a round adds is printed. Without RUN a tiny one is trained first.

    python benchmarks/serve_storm.py [RUN] --clients 200 --requests 1000 --rounds 8
"""

import argparse
import collections
import http.client
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ODD_VALUES = (None, True, -1, 0, 1e308, 2**70, "x", [], {}, [[1]], [-1], "\0\uffff", ["", "y"], "palm " * 5000)
FIELDS = ("prompt", "n", "max_tokens", "temperature", "top_p", "top_k", "stop", "seed", "echo", "logprobs", "stream")
PROMPTS = ("", "\0", "\x1b[31m\x7f", "\u202e\ufeff", "😀" * 2, "[eod]", "\r\n\t", "e\u0301", "palm", "river ", "a" * 10)


def body_of(rng: random.Random) -> tuple[str, bytes]:
    """A kind of request and its body."""
    good = {"prompt": rng.choice(PROMPTS), "max_tokens": rng.randrange(1, 6), "seed": rng.randrange(99)}
    kind = rng.choice(
        ("good", "good", "stream", "left", "many", "field", "field", "bytes", "bytes", "long", "not utf-8")
    )
    if kind == "stream" or kind == "left":
        good |= {"stream": True, "n": 4}
    elif kind == "many":
        good |= {"n": rng.choice((40, 100, 128, 10**9))}
    elif kind == "field":
        good |= {name: rng.choice(ODD_VALUES) for name in rng.sample(FIELDS, 2)}
    elif kind == "long":
        good["prompt"] = rng.choice(("word " * 300, "\0" * 200_000, [1] * 5000))
    data = bytearray(json.dumps(good).encode())
    if kind == "bytes":
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if kind == "not utf-8":
        data[rng.randrange(len(data))] = 0xFF
    return kind, bytes(data)


def ask(address: tuple[str, int], seed: int) -> str:
    """One request; what came of it. AssertionError where an answer is not as it must be."""
    rng = random.Random(seed)
    kind, data = body_of(rng)
    connection = http.client.HTTPConnection(*address, timeout=300)
    try:
        connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
        if kind == "left" and rng.random() < 0.5:
            return "left at once"
        answer = connection.getresponse()
        if kind == "left":
            answer.read(10)
            return "left half read"
        text = answer.read()
        if answer.getheader("Content-Type", "").startswith("text/event-stream"):
            assert text.endswith(b"data: [DONE]\n\n"), text[-200:]
            return f"{answer.status} stream"
        found = json.loads(text)
        if answer.status == 200:
            assert found["choices"], found
        else:
            assert answer.status in (400, 404, 429), (answer.status, found)
            assert found["error"]["message"].endswith("."), found
            assert (answer.status == 429) == (answer.getheader("Retry-After") is not None)
        return str(answer.status)
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1000, help="a round")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--queue", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        storm(options.run or tiny_run(Path(scratch)), options)


def storm(run: Path, options: argparse.Namespace) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "areca", "serve", str(run), "--port", "0", "--queue", str(options.queue)],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stderr is not None
    try:
        where = next(found for line in server.stderr if (found := re.search(r"http://([\d.]+):(\d+)/v1;", line)))
        address = where[1], int(where[2])
        said: list[str] = []
        reading = threading.Thread(target=said.extend, args=(server.stderr,))  # a full pipe would stop the server
        reading.start()
        print(f"before: RSS {rss(server.pid):.0f} MB")
        with ThreadPoolExecutor(options.clients) as pool:
            for number in range(options.rounds):
                started, before = time.perf_counter(), rss(server.pid)
                seeds = range(number * options.requests, (number + 1) * options.requests)
                counts = collections.Counter(pool.map(lambda seed: ask(address, seed), seeds))
                idle(address)
                seconds = time.perf_counter() - started
                print(f"round {number + 1}: {options.requests} requests, {options.clients} clients, {seconds:.1f} s, "
                      f"{dict(sorted(counts.items()))}; RSS {rss(server.pid):.0f} MB "
                      f"({rss(server.pid) - before:+.1f})", flush=True)  # fmt: skip
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
        reading.join()
        print(f"SIGTERM: exit code {server.returncode}; it said: {said[-1].strip()}")
        if server.returncode or len(said) > 2:
            sys.exit("".join(said))
    finally:
        server.kill()


def idle(address: tuple[str, int]) -> None:
    """Waits until the server has nothing left to do."""
    deadline = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", "/health")
        state = json.loads(connection.getresponse().read())
        connection.close()
        if state["running"] + state["waiting"] == 0:
            return
        if time.monotonic() > deadline:
            sys.exit(f"the server still works a minute after the last client left: {state}")
        time.sleep(0.1)


def rss(pid: int) -> float:
    """MB of memory that a process has in use."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def tiny_run(scratch: Path) -> Path:
    """The run that tests train."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from areca import runtime

    runtime.prepare()
    from areca.train.loop import train
    from tiny import build_tiny_store, tiny_config

    train(tiny_config(build_tiny_store(scratch / "made")), scratch / "run")
    return scratch / "run"


if __name__ == "__main__":
    main()
