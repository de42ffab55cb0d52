"""The guard's judgement on made-up traces: what is a spike, what is not, and that it needs no more than the metrics."""

import itertools
import json
import math

import numpy as np
import pytest

from areca.config import GuardConfig, from_dict, to_dict
from areca.errors import ConfigError
from areca.train.guard import Detector, Spike, check, describe
from tiny import tiny_config

GUARD = GuardConfig()


def _row(step: int, loss: float | None, update: float = 0.1, rate: float = 0.01) -> dict:
    values = {"loss": loss, "z_loss": 1e-3, "grad_norm": 1.0, "update_norm": update, "param_norm": 40.0}
    return {"step": step, "learning_rate": rate, **values}


def _found(losses, updates=None, rates=None, config: GuardConfig = GUARD) -> list[Spike]:
    updates = itertools.repeat(0.1) if updates is None else updates
    rates = itertools.repeat(0.01) if rates is None else rates
    detector = Detector(config)
    rows = [_row(k, *values) for k, values in enumerate(zip(losses, updates, rates, strict=False), 1)]
    return [s for row in rows if (s := detector.observe(row)) is not None]


def _noise(n: int, scale: float = 0.03, seed: int = 0) -> np.ndarray:
    """Log-normal factors around 1."""
    return np.exp(scale * np.random.default_rng(seed).normal(size=n))


def test_a_jump_of_the_loss_is_a_spike_where_it_began():
    losses = 3.0 * _noise(400)
    losses[199:] *= 2.0  # steps 200 on
    spike = _found(losses)[0]
    assert (spike.step, spike.found_at, spike.what) == (200, 202, "loss")
    assert spike.value == losses[199]
    assert spike.median == pytest.approx(3.0, rel=0.01)
    assert spike.scale == pytest.approx(0.03, rel=0.3)  # MAD * 1.4826 estimates the deviation of a normal
    assert describe(spike).startswith("the loss is 6.")


def test_a_jump_of_the_update_norm_is_a_spike_though_the_loss_is_as_ever():
    updates = 0.1 * _noise(300)
    updates[250:] *= 6.0
    spike = _found(3.0 * _noise(300, seed=1), updates)[0]
    assert (spike.step, spike.what) == (251, "update_norm")
    assert spike.median == pytest.approx(0.1, rel=0.02)


def test_one_odd_batch_is_no_spike_and_neither_is_one_now_and_then():
    losses = 3.0 * _noise(600)
    losses[100::20] *= 2.0
    losses[201] = losses[200]  # two in a row, patience is three
    assert _found(losses) == []
    losses[202] = losses[200]
    assert _found(losses)[0].step == 201


def test_a_rare_tokens_row_is_no_spike():
    """Seen in ladders: the update norm rises three times in one step and decays with the momentum of 0.9."""
    updates = 0.1 * _noise(300)
    updates[250:] *= 1 + 2.0 * 0.9 ** np.arange(50)
    assert _found(3.0 * _noise(300, seed=1), updates) == []


@pytest.mark.parametrize("scale", [0.0, 1e-4, 0.01, 0.1, 0.3])
def test_noise_of_any_size_is_no_spike(scale):
    n = 5000
    assert _found(3.0 * _noise(n, scale), 0.1 * _noise(n, scale, 1)) == []


def test_a_slow_rise_and_a_fall_are_no_spikes():
    k = np.arange(3000)
    assert _found(2.0 * 1.0005**k * _noise(3000, 0.01)) == []
    assert _found(2.0 + 5.0 * np.exp(-k / 100)) == []


def test_a_plateau_without_any_noise_has_a_floor_under_its_scale():
    assert _found([3.0] * 300 + [3.3] * 10) == []
    assert _found([3.0] * 300 + [3.5] * 10)[0].scale == 0.02


def test_neither_warmup_nor_decay_of_the_rate_is_a_spike():
    # From 0 up over 200 steps and down to 0 again: updates are in proportion, the loss falls as it learns.
    rates = np.concatenate([np.linspace(0, 0.01, 200), np.linspace(0.01, 0, 400)])
    losses = 2.5 + 4.0 / (1 + np.cumsum(rates) / 0.3)
    assert _found(losses * _noise(600, 0.01), 12 * rates * _noise(600, 0.05, 1), rates) == []


def test_nothing_is_called_a_spike_before_there_is_something_to_compare_with():
    before = GUARD.min_steps
    jumping = [6.0] * (before - 1) + [60.0] * 2 + [6.0] * 100
    assert _found(jumping) == []
    assert _found([6.0] * before + [60.0] * 3)[0].step == before + 1


@pytest.mark.parametrize("name", ["loss", "z_loss", "grad_norm", "update_norm", "param_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_not_finite_is_a_spike_at_once_even_at_the_first_step(name, value):
    spike = Detector(GUARD).observe(_row(1, 6.0) | {name: value})
    assert spike == Spike(1, 1, name, None, None, None)
    assert describe(spike) == f"the {name.replace('_', ' ')} is not finite"


def test_a_loss_that_explodes_within_a_jump_began_where_the_jump_did():
    assert _found([3.0] * 200 + [9.0, math.nan])[0] == Spike(201, 202, "loss", 9.0, pytest.approx(3.0), 0.02)


def test_a_detector_made_from_the_metrics_judges_as_one_that_was_there(tmp_path):
    # Odd batches and a rate of zero here and there; the rows pass through JSON as those of a resumed run do.
    config = GuardConfig(window=16, min_steps=8, patience=3, threshold=4.0)
    n = 300
    losses, updates = 3.0 * _noise(n), 0.1 * _noise(n, seed=2)
    strange = np.random.default_rng(3).random(n) < 0.3
    losses[strange] *= 2.0
    updates[::17] = 0.0
    rows = [_row(k + 1, float(losses[k]), float(updates[k])) for k in range(n)]
    rows = [json.loads(json.dumps(row)) for row in rows]
    detector, verdicts = Detector(config), []
    for row in rows:
        verdicts.append(detector.observe(row))
        if verdicts[-1] is not None:
            break
    assert verdicts[-1] is not None
    assert len(verdicts) > 60
    for start in range(len(verdicts)):
        resumed = Detector(config, rows[:start])
        assert [resumed.observe(row) for row in rows[start : len(verdicts)]] == verdicts[start:]


def test_the_guard_is_part_of_the_fingerprint_and_survives_json():
    config = tiny_config("store", guard=GuardConfig(rewind_steps=50))
    assert from_dict(to_dict(config)) == config
    assert config.fingerprint() != tiny_config("store").fingerprint()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"threshold": 0.0}, "guard.threshold is 0.0; it must be positive"),
        ({"threshold": math.inf}, "guard.threshold is inf"),
        ({"threshold": math.nan}, "guard.threshold is nan"),
        ({"window": 3}, "guard.window is 3; it must be at least 4"),
        ({"min_steps": 1}, "guard.min_steps is 1; it must lie between 2 and guard.window, 128"),
        ({"min_steps": 200}, "guard.min_steps is 200"),
        ({"patience": 0}, "guard.patience is 0; it must lie between 1 and a quarter of guard.window, 32"),
        ({"patience": 33}, "guard.patience is 33"),
        ({"rewind_steps": 0}, "guard.rewind_steps is 0; it must be at least 1"),
        ({"skip_batches": 99}, "guard.skip_batches is 99; it must be at least guard.rewind_steps, 100"),
        ({"max_rewinds": -1}, "guard.max_rewinds is -1; it must be at least 0"),
    ],
)
def test_settings_that_cannot_be_used_are_said(changes, says):
    with pytest.raises(ConfigError) as caught:
        check(GuardConfig(**changes))
    assert says in str(caught.value)
