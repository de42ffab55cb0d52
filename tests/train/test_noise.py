"""The gradient noise scale: a linear regression whose noise is known in closed form, and runs that measure it."""

import signal
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.config import BatchConfig, GuardConfig, ParallelConfig
from areca.errors import ConfigError, Interrupted
from areca.files import read_json
from areca.train.loop import train
from areca.train.noise import NoiseScale, check, estimate, gradients_of_parts, parts_for
from areca.train.record import metrics_without_timing, read_metrics
from tiny import tiny_config

WIDTH, SIGMA = 20, 0.5


def _measured(batch, parts, repeats, offset):
    """Mean estimates at a point `offset` from the optimum of y = w x + noise, x standard normal in WIDTH dimensions."""

    def gradient(w, rows_BX):
        x, y = rows_BX[:, :-1], rows_BX[:, -1]
        return jax.grad(lambda w: 0.5 * jnp.mean((x @ w - y) ** 2))(w), jnp.float32(0)

    @jax.jit
    def both(key):
        kx, ke = jax.random.split(key)
        x = jax.random.normal(kx, (batch, WIDTH))
        y = SIGMA * jax.random.normal(ke, (batch,))  # the optimum is 0
        rows = jnp.concatenate([x, y[:, None]], axis=1)
        whole, _, small_sq = gradients_of_parts(gradient, offset, rows, parts)
        return jnp.stack(estimate(small_sq, jnp.sum(whole**2), batch // parts, batch))

    return np.asarray(jax.vmap(both)(jax.random.split(jax.random.key(batch), repeats)))


@pytest.mark.parametrize(("batch", "parts"), [(8, 2), (8, 8), (64, 4), (512, 8)])
def test_a_regressions_noise_scale_is_measured_at_every_batch(batch, parts):
    offset = jnp.full((WIDTH,), 0.3)
    square = float(jnp.sum(offset**2))
    # One example's gradient is x (x . w) - x e: its mean is w, its covariance has the trace |w|^2 (n + 1) + n sigma^2.
    trace = square * (WIDTH + 1) + WIDTH * SIGMA**2
    found = _measured(batch, parts, 4000, offset)
    error = found.std(axis=0) / np.sqrt(len(found))
    assert abs(found[:, 0].mean() - trace) < 4 * error[0]
    assert abs(found[:, 1].mean() - square) < 4 * error[1]
    assert found[:, 0].mean() / found[:, 1].mean() == pytest.approx(trace / square, rel=0.15)


def test_numerator_and_denominator_are_smoothed_apart():
    """Denominators that are often negative make the mean of ratios nonsense, not the ratio of means."""
    generator, scale = np.random.default_rng(0), NoiseScale()
    told = [
        scale.observe(
            {"noise_trace": 30 * (1 + generator.normal(0, 0.3)), "noise_grad_sq": 0.01 + generator.normal(0, 0.03)}
        )
        for _ in range(3000)
    ]
    late = [t for t in told[1000:] if t is not None]
    assert np.median(late) == pytest.approx(3000, rel=0.15)
    assert NoiseScale().observe({"noise_trace": 1.0, "noise_grad_sq": -1.0}) is None
    assert NoiseScale().observe({"noise_trace": None, "noise_grad_sq": 1.0}) is None


@pytest.fixture(scope="module")
def measured(tiny_store, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("noise") / "run"
    return run_dir, train(tiny_config(tiny_store, noise_parts=4), run_dir)


def test_a_run_that_measures_follows_the_one_that_does_not_to_rounding(measured, tiny_run):
    run_dir, result = measured
    rows, plain = read_metrics(run_dir), read_metrics(tiny_run)
    for name in ("loss", "grad_norm", "update_norm", "param_norm"):
        assert [r[name] for r in rows] == pytest.approx([r[name] for r in plain], rel=1e-4)
    assert "noise_scale" not in plain[0]
    assert "noise_scale" not in read_json(tiny_run / "result.json")
    assert result["noise_scale"] == rows[-1]["noise_scale"]
    # Definitions: |G_B|^2 is the logged norm, and E|G_B|^2 = |G|^2 + tr(Sigma) / B holds in each step by construction.
    for r in rows:
        assert r["noise_grad_sq"] + r["noise_trace"] / 64 == pytest.approx(r["grad_norm"] ** 2, rel=1e-3)


def test_a_run_that_was_stopped_measures_what_it_would_have(measured, tiny_store, tmp_path):
    def stop(progress):
        if progress.step == 6:
            signal.raise_signal(signal.SIGINT)

    config = tiny_config(tiny_store, noise_parts=4)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", listener=stop)
    train(config, tmp_path / "run", resume="must")
    assert metrics_without_timing(tmp_path / "run") == metrics_without_timing(measured[0])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_on_a_mesh_the_same_is_measured(measured, tiny_store, tmp_path):
    train(tiny_config(tiny_store, noise_parts=2, parallel=ParallelConfig(2, 2)), tmp_path / "mesh")
    train(tiny_config(tiny_store, noise_parts=2), tmp_path / "one")
    mesh, one = read_metrics(tmp_path / "mesh"), read_metrics(tmp_path / "one")
    for name in ("loss", "noise_trace"):
        assert [r[name] for r in mesh] == pytest.approx([r[name] for r in one], rel=1e-3)


def test_parts_that_batches_cannot_be_cut_into(tiny_store):
    config = tiny_config(tiny_store, batch=BatchConfig(((0, 4), (256, 6))))
    assert parts_for(config) == 2
    assert parts_for(tiny_config(tiny_store, batch=BatchConfig(((0, 24),)))) == 8
    assert parts_for(tiny_config(tiny_store, parallel=ParallelConfig(2, 1))) == 2
    with pytest.raises(ConfigError, match="batches of 4, 7 sequences"):
        parts_for(replace(config, batch=BatchConfig(((0, 4), (256, 7)))))
    with pytest.raises(ConfigError, match="noise_parts is 4, which does not cut a batch of 6 sequences"):
        check(replace(config, noise_parts=4))
    with pytest.raises(ConfigError, match="noise_parts is 1; give 2 or more"):
        check(replace(config, noise_parts=1))


def test_runs_of_one_program_measure_each_its_own(tiny_store, tmp_path):
    from areca.train.together import Member, train_together

    def config(seed):
        return tiny_config(tiny_store, noise_parts=2, guard=GuardConfig(enabled=False), seed=seed)

    train_together([Member(config(s), tmp_path / f"run-{s}", {}) for s in (0, 1)])
    train(config(1), tmp_path / "alone")
    shared, alone = read_metrics(tmp_path / "run-1"), read_metrics(tmp_path / "alone")
    assert [r["noise_trace"] for r in shared] == pytest.approx([r["noise_trace"] for r in alone], rel=1e-3)
    assert shared[0]["noise_trace"] != read_metrics(tmp_path / "run-0")[0]["noise_trace"]


def test_the_flag_cuts_every_batch_of_the_run(tiny_store, tmp_path, capsys):
    import json

    from areca.cli.main import main
    from areca.config import to_dict

    (tmp_path / "run.json").write_text(json.dumps(to_dict(tiny_config(tiny_store, batch=BatchConfig(((0, 7),))))))
    command = ["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "run"), "--noise-scale"]
    assert main(command) == 0
    assert "gradient noise scale at the end" in capsys.readouterr().out
    assert read_json(tmp_path / "run" / "run.json")["config"]["noise_parts"] == 7
    assert main([*command[:-1], "--resume"]) == 2
    assert "noise_parts: 7 -> 0" in capsys.readouterr().err
