"""What a store and a copy behind a URL cost a run, against the same run with a local store and no copy.

    python benchmarks/remote.py [--repeats 5] [--steps 150] [--save-every 25] [--source code]

A server that speaks S3 (moto's) runs on the machine's last core; training has one thread of all cores, and the process
that copies what is left. Three kinds of run take turns: the store on disk; the store behind a URL, its first fetch
timed apart; the store on disk and every checkpoint copied to a URL. Printed are the steps' median times, and
the processor's seconds of the whole training process, as ratios to the first kind.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
RUN = """
import json, sys, time
from areca.config import from_dict
from areca.train.loop import train
out, copy_to, config = sys.argv[1], sys.argv[2], from_dict(json.loads(sys.argv[3]))
train(config, out, copy_to=copy_to)
print(time.process_time())
"""


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--save-every", type=int, default=25)
    parser.add_argument("--source", default="code", help="of the store, as of `areca corpus build`")
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", "ARECA_CACHE": str(root / "cache"), "JAX_PLATFORMS": "cpu",
        }  # fmt: skip
        with subprocess.Popen([sys.executable, "-c", SERVER], stdin=PIPE, stdout=PIPE, stderr=DEVNULL) as server:
            os.sched_setaffinity(server.pid, cores[-1:])
            assert server.stdout
            os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{int(server.stdout.readline())}"
            try:
                compare(root, given)
            finally:
                server.terminate()


def compare(root: Path, given: argparse.Namespace) -> None:
    """Builds the store here and there, trains by turns, prints."""
    import fsspec

    from areca.data.build import build_store
    from areca.data.store import TokenStore

    fsspec.filesystem("s3").mkdir("lab")
    local, url = root / "store", "s3://lab/store"
    meta = build_store(local, [given.source], vocab_size=4096)
    started = time.perf_counter()
    build_store(url, [given.source], vocab_size=4096)
    print(f"built and sent: {time.perf_counter() - started:.1f} s")
    subprocess.run(["rm", "-rf", root / "cache" / "remote"], check=True)
    started = time.perf_counter()
    size = sum(p.stat().st_size for p in TokenStore.open(url).path.iterdir())
    took = time.perf_counter() - started
    print(f"first fetch: {size / 1e6:.1f} MB in {took:.2f} s, {size / 1e6 / took:.0f} MB/s, each file proven by digest")
    print(f"store: {sum(c['train_tokens'] for c in meta['corpora']):,} tokens")
    steps: dict[str, list[float]] = {"local": [], "store by URL": [], "copied": []}
    used: dict[str, list[float]] = {kind: [] for kind in steps}
    copies: list[dict] = []
    digests = set()
    for repeat in range(given.repeats):
        for kind in steps:
            out = root / f"{kind.split()[0]}-{repeat}"
            store, to = (url if kind == "store by URL" else str(local)), ""
            if kind == "copied":
                to = f"s3://lab/runs/{repeat}"
            config = {
                "model": {"vocab_size": 4096, "d_model": 64, "n_layers": 4, "n_heads": 4},
                "data": {"store": store, "context": 128}, "tokens": given.steps * 16 * 128, "threads": 1,
                "batch": {"ramp": [[0, 16]]}, "evaluation": {"max_tokens": 4096, "batch": 8},
                "checkpoint": {"every_steps": given.save_every},
            }  # fmt: skip
            command = [sys.executable, "-c", RUN, str(out), to, json.dumps(config)]
            used[kind].append(float(subprocess.run(command, check=True, stdout=PIPE).stdout))
            rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
            steps[kind].append(statistics.median(r["seconds"] for r in rows[10:]))
            events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
            copies += [e for e in events if e["event"] == "copied"]
            digests.add(json.loads((out / "result.json").read_text())["parameters_sha256"])
    for kind, times in steps.items():
        told = [f"{kind:<13} {statistics.median(times) * 1e3:.1f} ms a step, {_ratio(times, steps['local'])}"]
        told.append(
            f"{statistics.median(used[kind]):.1f} s of its process' processor, {_ratio(used[kind], used['local'])}"
        )
        print("; ".join(told))
    sent, seconds = sum(c["bytes"] for c in copies), sum(c["seconds"] for c in copies)
    print(f"copies: {len(copies)}, {sent / 1e6:.0f} MB in {seconds:.1f} s, {sent / 1e6 / seconds:.0f} MB/s")
    print(f"parameters: {'the same bits in all runs' if len(digests) == 1 else f'{len(digests)} DIFFERENT'}")


def _ratio(values: list[float], to: list[float]) -> str:
    ratios = [a / b for a, b in zip(values, to, strict=True)]
    return f"{statistics.median(ratios):.3f} of local ({min(ratios):.3f} to {max(ratios):.3f})"


if __name__ == "__main__":
    main()
