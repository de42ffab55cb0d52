"""The dry run: bytes, FLOPs and transfers against arithmetic, and the published pod."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import jax
import pytest
from jax.sharding import PartitionSpec as P

from areca import chips
from areca.config import OptimizerConfig
from areca.errors import ConfigError
from areca.model.config import PRESETS, ModelConfig
from areca.model.layout import Layout
from areca.train import step
from areca.train.ahead.dryrun import UNRUN, DryRun, check, dry_run
from areca.train.ahead.transfers import Transfer, transfers

SMALL = ModelConfig(vocab_size=304, d_model=64, n_layers=12, n_heads=8, head_dim=8, d_ff=128).resolved()


def _run(*words):
    """`areca dryrun` in a process whose jax can show as many devices as it takes."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    return subprocess.run(
        [sys.executable, "-m", "areca", "dryrun", *words], env=environment, capture_output=True, text=True, timeout=900
    )


def test_a_collective_in_a_scan_counts_as_often_as_it_runs():
    layout = Layout(4, 2)
    mesh = layout.mesh()

    def body(x, _):
        return x + jax.lax.psum(jax.lax.all_gather(x, "data", tiled=True).sum(), "model"), None

    def program(x):
        return layout.on_mesh(lambda x: jax.lax.scan(body, x, None, length=5)[0], mesh, P("data"), P("data"))(x)

    jaxpr = jax.jit(program).trace(jax.ShapeDtypeStruct((32,), "float32")).jaxpr
    # A device holds 8 numbers and gathers 32: three quarters of 128 bytes arrive. One number goes over two devices.
    assert transfers(jaxpr, {"data": 4, "model": 2}) == [
        Transfer("data", "all-gather", 5, 5 * 96),
        Transfer("model", "all-reduce", 5, 20),
    ]


def test_transfers_of_a_step_are_those_of_fully_sharded_data_parallelism():
    """Over data only, at remat "block": kernels are gathered twice a layer, their gradients summed once."""
    layout = Layout(8, 1, "block")
    mesh = layout.mesh()
    optimizer = OptimizerConfig()
    state = step.abstract_state(SMALL, optimizer, layout, mesh)
    jaxpr = step.trace_step(SMALL, optimizer, state, 8, 32, layout, mesh).jaxpr
    moved = {t.kind: t for t in transfers(jaxpr, {"data": 8, "model": 1}) if t.axis == "data"}
    L, D, H, K, F, V = 12, 64, 8, 8, 128, 304
    layer = 4 * (D * (H * K + 2 * K + 2 * F) + D * (H * K + F) + D)
    once = 4 * (V * D + D)
    share = 7 / 8
    assert moved["all-gather"].bytes == pytest.approx(share * (2 * L * layer + once), rel=1e-3)
    assert moved["reduce-scatter"].bytes == pytest.approx(share * (L * layer + once), rel=1e-3)


def test_bytes_and_flops_are_those_of_arithmetic():
    asked = DryRun(SMALL, 4, 2, 8, 32, dtype="float32", optimizer=OptimizerConfig())
    found = dry_run(asked)
    n = 304 * 64 + 12 * (2 * 64 * 64 + 2 * 64 * 8 + 3 * 64 * 128) + 13 * 64
    assert found["n_params_total"] == n
    assert found["bytes_per_chip"]["parameters"] == n * 4 // 8
    assert found["bytes_per_chip"]["optimizer"] == n * 8 // 8
    assert found["bytes_per_chip"]["saved_activations"] == 12 * 8 * 32 * 64 * 4 // 8
    # What the compiler says of its arguments: the state, this device's tokens, a few scalars.
    compiled = found["compiled"]["argument_bytes"]
    assert compiled == pytest.approx(n * 12 / 8 + 2 * 33 * 4, abs=64)
    assert found["compiled"]["temporary_bytes"] > found["bytes_per_chip"]["saved_activations"]
    assert found["extrapolated"] == []
    assert found["roofline"] is None
    assert found["flops"]["six_nd_per_step"] == 6 * (n - 304 * 64) * 8 * 32
    # A device's products: 3 x forward and the layer again but its output products, for its share of tokens and heads;
    # K and V on each of the two; T x T twice forward (once again), five times backward.
    tokens, D, inputs, outputs, kv = 2 * 32, 64, 4 * 8 + 2 * 64, 4 * 8 + 64, 2 * 8
    layer = 4 * D * (inputs + kv) + 3 * D * outputs
    attention = (2 + 2 + 5) * 32 * 4 * 8
    assert found["flops"]["products_per_chip_in_program"] == 2 * tokens * (12 * (layer + attention) + 3 * 304 * D // 2)


def test_muon_keeps_one_moment_of_a_matrix_and_multiplies_whole_matrices():
    muon = DryRun(SMALL, 1, 1, 8, 32, dtype="float32", optimizer=OptimizerConfig("muon", beta2=0.95))
    found, other = dry_run(muon), dry_run(dataclasses.replace(muon, optimizer=OptimizerConfig()))
    matrices = 12 * (2 * 64 * 64 + 2 * 64 * 8 + 3 * 64 * 128)
    n = found["n_params_total"]
    assert found["bytes_per_chip"]["optimizer"] == 4 * (2 * n - matrices)
    assert found["compiled"]["argument_bytes"] == pytest.approx(4 * (3 * n - matrices) + 8 * 33 * 4, abs=64)
    # What the traced program multiplies beyond Adafactor's: five iterations of each matrix of each layer.
    sides = [(64, 64)] * 2 + [(8, 64)] * 2 + [(64, 128)] * 3
    iterations = 12 * 5 * sum(4 * m * m * k + 2 * m**3 for m, k in sides)
    assert found["flops"]["optimizer_per_step"] == iterations
    products = [r["flops"]["products_per_chip_in_program"] for r in (found, other)]
    assert products[0] - products[1] == iterations
    assert other["flops"]["optimizer_per_step"] == 0
    assert found["flops"]["exact_per_step"] == other["flops"]["exact_per_step"]
    parts = found["bytes_per_chip"]["estimate"]
    assert found["bytes_per_chip"]["temporaries_estimate"] == sum(parts["moments"][parts["peak"]].values())
    assert found["bytes_per_chip"]["temporaries_at_most"] >= found["compiled"]["temporary_bytes"]


def test_code_that_is_not_optimised_has_the_same_plan_of_memory():
    layout = Layout(4, 2, "block")
    mesh = layout.mesh()
    state = step.abstract_state(SMALL, OptimizerConfig(), layout, mesh)
    lowered = step.trace_step(SMALL, OptimizerConfig(), state, 8, 32, layout, mesh).lower()
    quick, full = (lowered.compile(compiler_options=o).memory_analysis() for o in (UNRUN, None))
    assert quick.temp_size_in_bytes == pytest.approx(full.temp_size_in_bytes, rel=0.01)
    assert quick.argument_size_in_bytes == full.argument_size_in_bytes


@pytest.mark.parametrize(("memory", "fits", "least"), [(1e9, True, False), (1.5e6, None, True), (2e5, False, True)])
def test_the_verdict_is_by_the_bound_then_by_what_is_exact(memory, fits, least):
    chip = chips.Chip("mine", {"float32": 1e12}, memory, 1e12)
    found = dry_run(DryRun(SMALL, 4, 2, 8, 32, dtype="float32", chip=chip))["fits"]
    assert found["fits"] is fits
    assert ("needed_at_least" in found) is least
    assert found["needed_estimate"] <= found["needed_at_most"]


@pytest.mark.parametrize("large", [False, True])
def test_what_is_printed_fits_80_columns_in_fitting_units(large, capsys):
    from areca.cli.dryrun import _print

    result = dry_run(DryRun(SMALL, 4, 2, 8, 32, islands=2, chip=chips.chip("tpu-v4")))
    if large:  # as many digits as PaLM 540B's
        result["n_params_total"], result["devices"], result["batch"], result["context"] = 540e9, 6144, 2048, 2048
        result["mesh"] = {"data": 256, "model": 12, "islands": 2}
        result["transfers"] = [t | {"count": 1064, "bytes": 182_715_757_920} for t in result["transfers"]]
        result["islands_exchange"] = {"bytes": 1.08e12, "host_pairs": 768, "bytes_per_host_pair": 1_407_178_320.0}
        result["fits"] |= {"needed_at_least": 18e9, "needed_at_most": 18e9, "needed_estimate": 11e9}
        exposed = result["roofline"]["exposed"] | {"tokens_per_second": 238_300.0, "step_seconds": 17.6}
        result["published"] = exposed | {"source": "Chowdhery et al. 2022, section 4.1", "of_exposed": 0.65}
    _print("palm-540b", result)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = "\n".join(lines)
    assert " 0.00 " not in shown
    assert "e-0" not in shown
    assert "KiB" in shown
    if large:
        assert "768 pairs of hosts, 1.31 GiB a pair" in shown


def test_rooflines_are_bytes_and_flops_over_speeds():
    chip = chips.Chip(
        "mine", {"float32": 1e12}, 1e9, 1e12, interconnect_bytes_per_second=1e9, network_bytes_per_second=1e8
    )
    found = dry_run(DryRun(SMALL, 4, 2, 8, 32, dtype="float32", islands=2, chip=chip, chips_per_host=4))
    line = found["roofline"]
    assert line["compute_seconds"] == pytest.approx(found["flops"]["hardware_per_chip"] / 1e12)
    assert line["transfer_seconds"] == pytest.approx(sum(t["bytes"] for t in found["transfers"]) / 1e9)
    pair = found["n_params_total"] * 4 / 2  # two hosts of four chips in each island
    assert found["islands_exchange"]["bytes_per_host_pair"] == pytest.approx(pair)
    assert line["between_islands_seconds"] == pytest.approx(pair / 4e8)
    assert found["scaling"]["links"][-1]["exchange_seconds"] == pytest.approx(pair / 4e8)  # the chip's network
    parts = [line[k] for k in ("compute_seconds", "transfer_seconds", "between_islands_seconds")]
    assert line["exposed"]["step_seconds"] == pytest.approx(sum(parts))
    assert line["hidden"]["step_seconds"] == pytest.approx(max(parts))
    assert line["hidden"]["tokens_per_second"] == pytest.approx(2 * 8 * 32 / max(parts))


@pytest.mark.slow
def test_a_pod_of_3072_chips_holds_palm_540b_as_published():
    """Chowdhery et al. 2022, section 4: 12-way model, 256-way data, two pods, 32 GB a chip."""
    words = ("palm-540b", "--mesh", "256x12", "--islands", "2", "--batch", "2048", "--chip", "tpu-v4", "--json")
    done = _run(*words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"]["fits"] is True
    assert found["fits"]["memory"] == 32 * 2**30
    # 118 inputs of 1,024 x 2,048 x 18,432 bfloat16 numbers over 3,072 chips: 2.77 GiB of the temporaries.
    assert round(found["bytes_per_chip"]["saved_activations"] / 2**30, 2) == 2.77
    assert found["bytes_per_chip"]["temporaries_estimate"] < 0.7 * found["bytes_per_chip"]["temporaries_at_most"]
    assert found["compiled"]["data"] * found["compiled"]["model"] == 1536
    assert "by arithmetic" in found["extrapolated"][0]
    assert found["bytes_per_chip"]["parameters"] == pytest.approx(4 * 540.35e9 / 3072, rel=1e-4)
    # 540.35e9 bfloat16 gradients over 768 pairs of hosts: 1.31 GiB each.
    assert found["islands_exchange"]["host_pairs"] == 768
    assert round(found["islands_exchange"]["bytes_per_host_pair"] / 2**30, 2) == 1.31
    published = found["published"]
    assert round(100 * published["mfu"], 1) == 46.2
    assert found["roofline"]["exposed"]["step_seconds"] < published["step_seconds"]
    # Section 4: two pods are about 1.95 times one. Parts of it are tests/conformance/test_palm_islands.py.
    after, over = (found["scaling"]["links"][0][way] for way in ("after_backward", "overlapped"))
    assert round(after["weak"], 2) == 1.95
    assert 1.98 < over["weak"] < 2
    received = {(t["axis"], t["kind"]): t["bytes"] for t in found["transfers"]}
    assert received["data", "all-gather"] == pytest.approx(182_715_757_920, rel=1e-3)
    assert received["data", "reduce-scatter"] == pytest.approx(91_749_595_680, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["palm-8b", "--mesh", "4by2", "--batch", "8"], "the mesh is '4by2'; write it as DATAxMODEL"),
        (["palm-8b", "--mesh", "3x1", "--batch", "9"], "d_model 4096 is not divisible by 3"),
        (["palm-8b", "--mesh", "4x2", "--batch", "9"], "batch is 9 sequences"),
        (["palm-8b", "--mesh", "4x2", "--batch", "9", "--islands", "2"], "can't be shared by 2 islands"),
        (["palm-8b", "--mesh", "4x2", "--batch", "8", "--chip", "tpu-v44"], "tpu-v4"),
        (["palm-8b", "--mesh", "4x2", "--batch", "8", "--context", "-1"], "context is -1"),
    ],
)
def test_what_cannot_be_is_one_sentence(words, said, capsys):
    from areca.cli.main import main

    assert main(["dryrun", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_mesh_that_is_too_large_to_simulate_is_compiled_on_its_largest_divisor():
    asked = DryRun(PRESETS["palm-540b"].resolved(), 256, 12, 1024, 2048)
    assert asked.compiled_data() == 128
    with pytest.raises(ConfigError, match="a model axis of 4096"):
        DryRun(SMALL, 1, 4096, 8, 32).compiled_data()
    with pytest.raises(ConfigError, match="d_model 18432 is not divisible"):
        check(DryRun(PRESETS["palm-540b"].resolved(), 100, 12, 1000, 2048))
    assert math.isclose(asked.devices, 3072)


def test_a_context_beyond_the_learned_positions_is_refused():
    model = dataclasses.replace(SMALL, positions="learned", n_positions=16)
    with pytest.raises(ConfigError, match="context is 32 and the model learns 16 positions; give n_positions at least"):
        check(DryRun(model, 1, 1, 8, 32))
