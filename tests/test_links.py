"""The benchmarks' link: its speed beside the chosen one, both hosts apart, nothing left behind, the fallback said."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
_spec = importlib.util.spec_from_file_location("links", BENCHMARKS / "links.py")
assert _spec
assert _spec.loader
links = importlib.util.module_from_spec(_spec)
sys.modules["links"] = links  # where its dataclass looks for its types
_spec.loader.exec_module(links)

HELD = f"""
import subprocess, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
import links
with links.link(1e9) as made:
    print(subprocess.Popen(made.command(0, ["sleep", "60"])).pid, flush=True)
    time.sleep(60)
"""
SIDE = """
import socket, sys
address, path = sys.argv[1:]
with socket.create_server((address, 0)) as server, socket.socket(socket.AF_UNIX) as control:
    control.connect(path)
    control.sendall(b"%d\\n" % server.getsockname()[1])
    data = server.accept()[0]
    for _ in range(5):
        left = 5_000_000
        while left:
            left -= len(data.recv(left))
        data.sendall(b"x")
    data.recv(1)
"""
SENDER = """
import socket, sys, time
data, to = bytes(5_000_000), socket.create_connection((sys.argv[1], int(sys.argv[2])))
took = []
for _ in range(5):
    started = time.perf_counter()
    to.sendall(data)
    to.recv(1)
    took.append(time.perf_counter() - started)
print(min(took))
"""


@pytest.fixture
def namespaces():
    """A machine that gives links; the others skip, with the reason."""
    try:
        with links.link(1e9):
            pass
    except links.NoLink as missing:
        pytest.skip(str(missing))


def _names() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_the_bucket_lets_no_more_than_its_speed_and_one_burst_leave():
    bucket = links.Bucket(80e6, burst=100_000)  # 10 MB/s
    started = time.monotonic()
    threads = [threading.Thread(target=lambda: [bucket.take(50_000) for _ in range(10)]) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    # A million bytes less the burst, at 10 MB/s.
    assert 0.09 <= time.monotonic() - started < 0.5


def test_a_bucket_saves_up_no_more_than_a_burst():
    bucket = links.Bucket(80e6, burst=100_000)
    bucket.take(100_000)
    time.sleep(0.05)
    started = time.monotonic()
    bucket.take(400_000)
    assert time.monotonic() - started >= 0.029


def test_without_root_one_sentence_says_so_and_the_fallback_is_named(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda name: name)
    monkeypatch.setattr(links.os, "geteuid", lambda: 1000)
    with pytest.raises(links.NoLink, match="needs root"), links.link(1e9):
        pass
    with links.link(1e9, fallback=True) as made:
        assert made.kind == "token bucket in user space"
        assert "needs root" in made.missing
        assert made.command(0, ["true"], core=1) == ["taskset", "-c", "1", "true"]
        assert made.bucket().seconds_per_byte == 8e-9


def test_without_iproute2_or_a_kernel_that_can_the_sentence_names_it(monkeypatch):
    monkeypatch.setattr(links.shutil, "which", lambda name: None)
    with pytest.raises(links.NoLink, match="needs ip and taskset and tc; install iproute2"), links.link(1e9):
        pass
    with pytest.raises(links.NoLink, match="`false 1` says"):
        links._do("false", "1")


@pytest.mark.parametrize("mbits", [200, None])
def test_bytes_take_what_the_speed_says_and_control_goes_over_the_file_system(namespaces, tmp_path, mbits):
    path = str(tmp_path / "control")
    with links.link(mbits and 1e6 * mbits) as made, socket.socket(socket.AF_UNIX) as control:
        control.bind(path)
        control.listen()
        to = made.addresses[0]
        other = subprocess.Popen(made.command(0, [sys.executable, "-c", SIDE, to, path]))
        with control.accept()[0] as told:
            port = told.recv(16).decode().strip()
        command = made.command(1, [sys.executable, "-c", SENDER, to, port])
        took = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert other.wait(timeout=20) == 0
        with pytest.raises(OSError), socket.create_connection((to, int(port)), timeout=0.2):  # noqa: PT011
            pass  # from outside there is no such host
    if mbits:  # 40 Mbit, of which 1,448 in 1,514 bytes of a frame are payload; the burst comes at once
        assert 0.19 < took < 0.3
    else:
        assert took < 0.19
    assert f"{links.PREFIX}-{os.getpid()}" not in _names()


def test_what_a_killed_benchmark_left_is_gone_with_the_next_link(namespaces):
    held, inside = _held()
    held.send_signal(signal.SIGKILL)
    held.wait()
    assert f"{links.PREFIX}-{held.pid}-1" in _names()
    with links.link():
        assert f"{links.PREFIX}-{held.pid}" not in _names()
    assert _gone(inside)


def test_a_benchmark_that_is_asked_to_end_leaves_nothing(namespaces):
    held, inside = _held()
    held.terminate()
    assert held.wait(timeout=20) == 128 + signal.SIGTERM
    assert f"{links.PREFIX}-{held.pid}" not in _names()
    assert _gone(inside)


def _held() -> tuple[subprocess.Popen, int]:
    """A process that holds a link, and another on one of its hosts."""
    held = subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True)
    assert held.stdout
    with held.stdout as said:
        return held, int(said.readline())


def _gone(process: int) -> bool:
    for _ in range(100):
        state = Path(f"/proc/{process}/stat")
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.02)
    return False
