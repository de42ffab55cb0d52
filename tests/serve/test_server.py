"""The server under what no well-behaved client sends: odd bodies, crowds, clients that leave, signals."""

import contextlib
import json
import random
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import end, start

from areca.errors import ConfigError
from areca.serve.server import serve

pytest.importorskip("uvicorn", reason="the extra areca[serve] is not installed")

GOOD = {"model": "run", "prompt": "palm", "max_tokens": 4, "seed": 1}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "the body is not JSON"),
        (b"{", 400, "the body is not JSON"),
        (b'{"prompt": "\xff\xfe"}', 400, "the body is not UTF-8 (byte 12)"),
        (b"[1, 2]", 400, "not a JSON object"),
        (b"null", 400, "not a JSON object"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "NaN is no number of JSON"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", 400, "the body is not JSON"),
        (b'{"prompt": "a", "n": ' + b"9" * 400 + b"}", 400, "n is a number of more than 30 digits"),
        (b'{"prompt": "\\ud800"}', 400, "half of a surrogate pair"),
        ({}, 400, "the prompt must be text"),
        ({"prompt": None}, 400, "the prompt must be text"),
        ({"prompt": []}, 400, "the prompt must be text"),
        ({"prompt": [1, "a"]}, 400, "the prompt must be text"),
        ({"prompt": [True]}, 400, "the prompt must be text"),
        ({"prompt": [[]]}, 400, "the prompt must be text"),
        ({"prompt": {"a": 1}}, 400, "the prompt must be text"),
        ({"prompt": [300]}, 400, "outside of the model's vocabulary of 300"),
        ({"prompt": [-1]}, 400, "outside of the model's vocabulary of 300"),
        ({"prompt": [10**40]}, 400, "outside of the model's vocabulary of 300"),
        ({"prompt": "palm " * 40}, 400, "trained on 16 at a time; shorten it to at most 15"),
        ({"prompt": "palm " * 100_000}, 400, "trained on 16 at a time; shorten it to at most 15"),
        (GOOD | {"max_tokens": 16}, 400, "ask for at most"),
        (GOOD | {"max_tokens": -1}, 400, "max_tokens is -1"),
        (GOOD | {"max_tokens": 4.0}, 400, "max_tokens is 4.0"),
        (GOOD | {"max_tokens": "4"}, 400, 'max_tokens is "4"'),
        (GOOD | {"n": 0}, 400, "n is 0"),
        (GOOD | {"n": 10**9}, 400, "n is 1000000000; it must be a whole number from 1 to 128"),
        (GOOD | {"prompt": ["a"] * 100, "n": 2}, 400, "100 prompts with n = 2 are 200 choices; this server takes 128"),
        (GOOD | {"temperature": 3}, 400, "temperature is 3; it must be a number from 0 to 2"),
        (GOOD | {"temperature": True}, 400, "temperature is true"),
        (GOOD | {"top_p": 0}, 400, "top_p is 0.0"),
        (GOOD | {"seed": -1}, 400, "seed is -1"),
        (GOOD | {"seed": 2**32}, 400, "seed is 4294967296"),
        (GOOD | {"stop": ["a"] * 5}, 400, "stop may hold 4 texts"),
        (GOOD | {"stop": ""}, 400, "stop must be text"),
        (GOOD | {"stop": {"a": 1}}, 400, "stop must be text"),
        (GOOD | {"logprobs": 6}, 400, "logprobs is 6"),
        (GOOD | {"logprobs": 1, "echo": True}, 400, "leave out echo or logprobs"),
        (GOOD | {"best_of": 3}, 400, "best_of other than n is not offered"),
        (GOOD | {"presence_penalty": 0.5}, 400, "presence_penalty is not offered"),
        (GOOD | {"logit_bias": {"50256": -100}}, 400, "logit_bias is not offered"),
        (GOOD | {"tempature": 1}, 400, "there is no field 'tempature' (did you mean 'temperature'?)"),
        (GOOD | {"stream_options": {}}, 400, "goes with stream = true"),
        (GOOD | {"model": 3}, 400, "model is 3"),
        (GOOD | {"model": "x" * 10_000}, 404, "is not served here; ask for 'run'"),
        (b" " * (5 << 20), 413, "larger than 4 MiB"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_in_json(server, body, status, says):
    answered, _, error = server.post(body)
    assert (answered, list(error)) == (status, ["error"])
    assert says in error["error"]["message"]
    assert len(error["error"]["message"]) < 400
    assert error["error"]["type"] == "invalid_request_error"


def test_other_places_and_ways_are_refused_in_json(server):
    assert (
        server.ask("/v1/chat/completions", b"{}")[2]["error"]["message"] == "there is nothing at /v1/chat/completions."
    )
    status, headers, error = server.ask("/v1/completions")
    assert (status, headers["allow"]) == (405, "POST")
    assert "does not take GET" in error["error"]["message"]
    # A page of another site can make a browser send a form, but not JSON without asking.
    status, _, error = server.post(b"{}", "text/plain")
    assert (status, "application/json" in error["error"]["message"]) == (415, True)


@pytest.mark.parametrize(
    "prompt", ["", "\0", "\x01\x1b[31m\x7f", "\u202e\ufeff", "😀", "[eod]", "\r\n\t", "e\u0301" * 2]
)
def test_odd_prompts_are_continued(server, prompt):
    status, _, answer = server.post(GOOD | {"prompt": prompt, "echo": True, "max_tokens": 1})
    assert status == 200
    assert answer["choices"][0]["text"].startswith(prompt)


def _scrambled(seed: int) -> bytes:
    """A good body with a few bytes changed, or fields of other types."""
    rng = random.Random(seed)
    body = dict(GOOD)
    odd = [None, True, -1, 1e308, "x", [], {}, [[1]], "\0\uffff", 2**70, ["", "y"]]
    for name in rng.sample(
        ["prompt", "n", "max_tokens", "temperature", "top_p", "stop", "seed", "echo", "logprobs"], 2
    ):
        body[name] = rng.choice(odd)
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.randrange(3)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def test_scrambled_bodies_get_an_answer_or_an_error_object(server):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda seed: server.post(_scrambled(seed)), range(150)))
    for status, _, answer in answers:
        assert status in (200, 400, 404)
        assert ("choices" in answer) if status == 200 else answer["error"]["message"].endswith(".")
    assert {status for status, *_ in answers} >= {200, 400}
    assert server.health()["status"] == "ok"


def test_texts_in_a_crowd_are_those_alone(server):
    bodies = [
        GOOD | {"prompt": f"river {i % 7}", "seed": i, "temperature": i % 3, "max_tokens": 1 + i % 6} for i in range(40)
    ]
    alone = [server.post(body)[2]["choices"][0]["text"] for body in bodies]
    with ThreadPoolExecutor(40) as pool:
        crowd = list(pool.map(lambda body: server.post(body)[2]["choices"][0]["text"], bodies))
    assert crowd == alone


@pytest.fixture(scope="module")
def narrow(tiny_run: Path):
    """A server that draws one text at a time, so that others wait."""
    server = start(tiny_run, "--batch", "1", "--queue", "64", "--drain", "20")
    yield server
    end(server)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_is_not_worked_for(narrow, stream):
    before = narrow.health()
    data = json.dumps(GOOD | {"n": 64, "max_tokens": 12, "stream": stream})
    host, port = narrow.url.removeprefix("http://").split(":")
    head = ["POST /v1/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    head += [f"Content-Length: {len(data)}", "", data]
    with socket.create_connection((host, int(port))) as gone:
        gone.sendall("\r\n".join(head).encode())
        while not narrow.health()["running"]:
            pass
    deadline = time.monotonic() + 20
    while (now := narrow.health())["running"] + now["waiting"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert now["cancelled"] > before["cancelled"]


def test_a_full_queue_says_when_to_come_back(narrow):
    status, headers, error = narrow.post(GOOD | {"n": 65})
    assert (status, headers["retry-after"]) == (429, "1")
    assert error["error"]["type"] == "rate_limit_error"
    assert error["error"]["code"] == "queue_full"


def test_a_signal_lets_texts_end_and_then_ends_the_server(tiny_run: Path):
    server = start(tiny_run, "--batch", "1", "--queue", "9999")
    with ThreadPoolExecutor(8) as pool:  # so many that the signal is heard before they have ended
        asked = [pool.submit(server.post, GOOD | {"n": 128, "max_tokens": 12}) for _ in range(8)]
        while server.health()["waiting"] < 500:
            pass
        server.process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in asked]
    assert {status for status, _, _ in answers} <= {200, 503}
    for status, _, answer in answers:
        assert status == 503 or {c["finish_reason"] for c in answer["choices"]} <= {"stop", "length"}
    server.process.wait(60)
    said = end(server)
    assert server.process.returncode == 0
    assert "texts have 30 s to end." in said
    assert "per 1,000 tokens" in said


@pytest.mark.parametrize("drain", [300, 0])
def test_texts_that_are_cut_off_are_told_and_the_log_has_no_traceback(tiny_run: Path, drain):
    # By a second signal, or as the time to end has run out.
    server = start(tiny_run, "--batch", "1", "--queue", "9999", "--drain", str(drain))
    with ThreadPoolExecutor(20) as pool, _unread_stream(server):
        asked = [pool.submit(server.post, GOOD | {"n": 128, "max_tokens": 12}) for _ in range(18)]
        streams = [pool.submit(_stream, server, GOOD | {"n": 128, "max_tokens": 12}) for _ in range(2)]
        while server.health()["waiting"] < 2000:
            pass
        server.process.send_signal(signal.SIGINT)
        if drain:
            server.process.send_signal(signal.SIGTERM)
        said = end(server)
        assert server.process.returncode == 0
        assert any(one.result()[0] == 503 for one in asked)
        last = json.loads(streams[-1].result()[-1].removeprefix("data: "))
    assert last["error"]["message"] == "the server stopped before the text was done; try again."
    assert "Traceback" not in said
    assert "CancelledError" not in said


def test_clients_that_reset_their_streams_leave_no_word_in_the_log(tiny_run: Path):
    server = start(tiny_run)
    for _ in range(6):
        with contextlib.ExitStack() as clients:
            for one in [clients.enter_context(_unread_stream(server)) for _ in range(4)]:
                assert one.recv(64)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
        while server.health()["running"]:
            pass
    said = end(server)
    assert server.process.returncode == 0
    assert "socket.send" not in said
    assert "Traceback" not in said


def _stream(server, body) -> list[str]:
    """The events of a streamed answer."""
    import urllib.request

    data = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode().strip().split("\n\n")


def _unread_stream(server) -> socket.socket:
    """A client that asks for much and does not read it: the server can't tell it that it ends."""
    data = json.dumps(GOOD | {"n": 128, "max_tokens": 12, "stream": True, "logprobs": 5})
    host, port = server.url.removeprefix("http://").split(":")
    head = ["POST /v1/completions HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect((host, int(port)))
    client.sendall("\r\n".join([*head, f"Content-Length: {len(data)}", "", data]).encode())
    return client


def test_it_listens_on_the_loopback_address(server):
    assert server.url.startswith("http://127.0.0.1:")


def test_what_was_used_is_said_on_the_way(server):
    import urllib.request

    server.post(GOOD)
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        text = answer.read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(values["areca_tokens_total"]) > 0
    assert any(name.startswith("areca_kwh_per_1000_tokens{kind=") for name in values)
    card = server.ask("/v1/models")[2]["data"][0]
    assert card["footprint"]["kwh_per_1000_tokens"]["value"] > 0


def test_a_port_that_is_taken_is_said(server, tiny_run):
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port} can't be listened on .*; give another --host or --port"):
        serve(tiny_run, port=port)
    with pytest.raises(ConfigError, match="--batch is 0; it must be from 1 to 1024"):
        serve(tiny_run, batch=0)
