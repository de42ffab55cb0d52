"""Kills a short run again and again (SIGKILL), resumes it by the same command, and compares with a run never killed.

    python benchmarks/kill.py                20 random instants, then each phase until it was hit three times
    python benchmarks/kill.py --random 5 --each 1
    python benchmarks/kill.py --spike --mesh 2x2 --steps 300 --random 6 --each 1

With --spike the data has a stretch of noise that makes the loss spike, so that the run goes back and skips it; kills
then also come in the middle of that. With --mesh the run is on so many virtual devices.

Prints one line a kill (what the training thread and the saving thread were in), then the hits by phase and the digests
of parameters, whole state and metrics of every finished run. Exits 1 if a bit differs.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("kill_child.py")
PHASES = ("compile", "step", "save", "commit", "append")  # and "rewind" with --spike
LAST = {"compile": 2, "step": 40, "append": 40, "save": 4, "commit": 4}  # the nth time to die in, at most
CONTEXT = 32
WORDS = (
    "areca palm nut tree seed leaf the of and grows sings is red blue by a river moon sun stone counts seven nine bird"
)
CONFIG = """
tokens = {tokens}
threads = 1
[model]
vocab_size = 300
d_model = {width}
n_layers = {layers}
n_heads = 2
[data]
store = "{store}"
context = 32
[batch]
ramp = [[0, 4], [{half}, 8]]
[evaluation]
every_tokens = {half}
max_tokens = 1024
batch = 8
[checkpoint]
every_steps = {every}
keep_last = 2
"""
MESH = """
[parallel]
data = {data}
model = {model}
remat = "selective"
"""
SPIKE = """
[optimizer]
learning_rate = 0.1
[guard]
window = 24
min_steps = 16
rewind_steps = 8
skip_batches = 25
max_rewinds = 3
"""


def prepare(
    directory: Path,
    *,
    steps: int,
    every: int,
    width: int = 32,
    layers: int = 2,
    spike: bool = False,
    mesh: tuple[int, int] = (1, 1),
) -> Path:
    """Makes a token store of random words and a configuration of about `steps` steps with a batch ramp; returns it.

    With `spike`, twelve steps in the middle, from two before the batch doubles on, read noise; no window comes twice.
    """
    rng = random.Random(1)
    documents = max(400, 4 * steps) if spike else 400
    lines = (json.dumps({"text": " ".join(rng.choices(WORDS.split(), k=80)) + ".\n"}) for _ in range(documents))
    (directory / "text.jsonl").write_text("\n".join(lines) + "\n")
    store = directory / "store"
    areca(["corpus", "build", str(directory / "text.jsonl"), "--out", str(store), "--vocab-size", "300"], directory)
    tokens = steps * 6 * CONTEXT // 512 * 512  # half the tokens at a batch of 4, half at 8
    settings = CONFIG.format(tokens=tokens, half=tokens // 2, store=store, every=every, width=width, layers=layers)
    settings += MESH.format(data=mesh[0], model=mesh[1]) if mesh != (1, 1) else ""
    settings += SPIKE if spike else ""
    config = directory / "run.toml"
    config.write_text(settings)
    if spike:
        first = tokens // 2 // CONTEXT - 2 * 4
        poison(store, range(first, first + 2 * 4 + 10 * 8))
    return config


def poison(directory: Path, examples: range) -> None:
    """Writes noise over the windows of a store that are these examples of a run."""
    import numpy as np

    from areca.data.order import Order
    from areca.data.store import TokenStore, bin_name

    store, rng = TokenStore.open(directory), np.random.default_rng(0)
    order = Order(store, CONTEXT)
    for corpus, offset in order.windows(examples.start, examples.stop):
        tokens = np.memmap(directory / bin_name(store.corpora[corpus].name, "train"), dtype=store.dtype, mode="r+")
        tokens[offset + 1 : offset + CONTEXT] = rng.integers(0, 300, CONTEXT - 1)
        tokens.flush()


def environment(directory: Path) -> dict[str, str]:
    """Compiled programs are cached beside the runs: a resumed run then starts quickly, and with the same bits."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "NPROC"))}
    return keep | {"JAX_PLATFORMS": "cpu", "ARECA_CACHE": str(directory / "cache"), "OMP_NUM_THREADS": "1"}


def areca(arguments: list[str], directory: Path, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs `python -m areca ...` with warnings as errors."""
    command = [sys.executable, "-W", "error", "-m", "areca", *arguments]
    done = subprocess.run(command, env=environment(directory), capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return done


def killed(phase: str, when: float, arguments: list[str], directory: Path) -> dict[str, Any] | None:
    """Runs `areca train ...` until it kills itself; what it was in, or None if it finished before."""
    log = directory / "kills.jsonl"
    log.write_text("")
    command = [sys.executable, "-W", "error", str(CHILD), str(log), phase, str(when), "--", *arguments]
    done = subprocess.run(command, env=environment(directory), capture_output=True, text=True)
    if done.returncode == 0:
        return None
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}, not by the kill:\n{done.stderr}")
    lines = log.read_text().splitlines()
    return json.loads(lines[-1])


def outcome(run: Path) -> dict[str, str]:
    """Digests of what two equal runs share: parameters, the whole saved state, metrics without timing and rewinds."""
    from areca.files import read_json, sha256_json
    from areca.train.record import metrics_without_timing

    result = read_json(run / "result.json")
    went_back = read_json(run / "rewinds.json") if (run / "rewinds.json").exists() else None
    return {
        "parameters": result["parameters_sha256"],
        "state": state_sha256(run),
        "metrics": sha256_json([metrics_without_timing(run), went_back]),
        "loss": sha256_json([result["loss"], result["loss_by_corpus"], result["train_loss_last"]]),
    }


def state_sha256(run: Path) -> str:
    """SHA-256 of the state (step, parameters, optimizer) in the run's latest checkpoint."""
    import jax

    from areca.config import from_dict
    from areca.train.checkpoint import Checkpoints
    from areca.train.loop import parameters_sha256
    from areca.train.record import read_run_json
    from areca.train.step import init_state

    config = from_dict(read_run_json(run)["config"])
    example = jax.eval_shape(lambda: init_state(config.model, config.optimizer, config.seed))
    with Checkpoints(run / "checkpoints", writable=False) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        return parameters_sha256(checkpoints.restore(latest, example)[0])


def hits(kill: dict[str, Any]) -> set[str]:
    """The phases that one kill interrupted: one of the training thread, perhaps one of the saving thread."""
    return {kill["main"], kill["saving"]} - {"idle"}


def campaign(directory: Path, config: Path, n_random: int, each: int, seed: int, phases: tuple[str, ...]) -> int:
    """All kills, then the comparison; the exit code."""
    rng = random.Random(seed)
    reference = directory / "reference"
    areca(["train", str(config), "--out", str(reference)], directory)
    started = time.perf_counter()
    areca(["train", str(config), "--out", str(directory / "again")], directory)  # compiled programs are cached by now
    life = time.perf_counter() - started
    events = [json.loads(line) for line in (directory / "again" / "events.jsonl").read_text().splitlines()]
    training = events[-1]["time"] - events[0]["time"]
    expected = outcome(reference)
    finished = {"again": outcome(directory / "again")}
    print(
        f"uninterrupted, a run takes {life:.1f} s, {training:.1f} of them training; {n_random} kills at random instants"
        " (one in four of its life, the others of its training), then by design"
    )

    if "rewind" in phases:
        told = [e for e in events if e["event"] in ("spike", "rewind")]
        print("it " + ", ".join(f"has a spike at step {e['step']}" if e["event"] == "spike"
                                else f"goes back to step {e['to_step']}" for e in told))  # fmt: skip
        if not told:
            print("There is no spike in it, so no rewind can be killed.")
            return 1
    count: collections.Counter[str] = collections.Counter()
    later = 0
    runs, number = 1, 0
    while number < n_random or any(count[p] < each for p in phases):
        arguments = ["train", str(config), "--out", str(directory / f"run{runs}"), "--auto-resume"]
        if number < n_random:
            phase, length = ("life", life) if number % 4 == 0 else ("training", training)
            when = round(rng.uniform(0, length), 3)
        else:
            phase = rng.choice([p for p in phases if count[p] < each])
            when = round(rng.uniform(0, 0.15), 3) if phase == "rewind" else rng.randint(1, LAST[phase])
        kill = killed(phase, when, arguments, directory)
        if kill is None:
            finished[f"run{runs}"] = outcome(directory / f"run{runs}")
            same = "every bit as expected" if finished[f"run{runs}"] == expected else "BITS DIFFER"
            print(f"          run{runs}  finished: {same}", flush=True)
            runs += 1
            continue
        number += 1
        count.update(hits(kill))
        later += (directory / f"run{runs}" / "rewinds.json").exists()
        where = f"{kill['main']}, saving: {kill['saving']}"
        print(f"kill {number:3}  run{runs}  {phase:>8} {when:<7g}  in {where}  at {kill['seconds']:.2f} s", flush=True)
    arguments = ["train", str(config), "--out", str(directory / f"run{runs}"), "--auto-resume"]
    areca(arguments, directory)
    finished[f"run{runs}"] = outcome(directory / f"run{runs}")

    if "rewind" in phases:
        print(f"\n{later} of {number} kills came after the spike was seen and the list of rewinds written.")
    print("\nphase      kills\n" + "\n".join(f"{p:<10} {n}" for p, n in sorted(count.items(), key=lambda x: -x[1])))
    print(f"\n{'run':<10} parameters    state         metrics       losses")
    for name, found in {"reference": expected, **finished}.items():
        same = "" if found == expected else "   DIFFERS"
        print(f"{name:<10} {'  '.join(digest[:12] for digest in found.values())}{same}")
    good = all(found == expected for found in finished.values())
    print(
        f"\n{number} kills, {runs} killed runs: "
        + ("every bit as in the run never killed." if good else "BITS DIFFER.")
    )
    return 0 if good else 1


def main() -> int:
    """Parses the command line and runs the campaign in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=20, help="kills at random instants")
    parser.add_argument("--each", type=int, default=3, help="times that each phase is hit at least")
    parser.add_argument("--steps", type=int, default=1500, help="of the run")
    parser.add_argument("--every", type=int, default=25, help="steps between saves")
    parser.add_argument("--spike", action="store_true", help="noise in the data makes the run go back")
    parser.add_argument("--mesh", default="1x1", help="virtual devices, data x model (default 1x1)")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--keep", type=Path, help="directory for the runs, kept (default: a temporary one)")
    options = parser.parse_args()
    os.environ.update(environment(Path(tempfile.gettempdir())))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        data, model = map(int, options.mesh.split("x"))
        config = prepare(directory, steps=options.steps, every=options.every, spike=options.spike, mesh=(data, model))
        phases = (*PHASES, "rewind") if options.spike else PHASES
        return campaign(directory, config, options.random, options.each, options.seed, phases)


if __name__ == "__main__":
    sys.exit(main())
