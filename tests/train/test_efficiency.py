"""The steady state: what of a run's time is training, and what is the first step after a pause."""

import jax
import pytest

from areca.config import IslandsConfig, ParallelConfig
from areca.train import efficiency
from areca.train.efficiency import Machine, steady_tokens_per_second
from tiny import tiny_config


def _rows(*seconds: float, batch: int = 2) -> list[dict]:
    """A stretch: its first step, which follows a compilation, a save or an evaluation, then steady ones."""
    return [{"batch": batch, "seconds": s, "steady": i > 0} for i, s in enumerate(seconds)]


def test_the_first_step_after_a_pause_does_not_count():
    rows = _rows(60.0, 0.5, 0.5) + _rows(9.0, 0.5) + _rows(30.0, 0.5, 0.5)
    assert steady_tokens_per_second(rows, context=8) == 2 * 8 / 0.5


def test_steps_that_were_read_together_count_with_the_time_they_took_together():
    # Nine steps of 0.1 s that the host reads at once: the median of single lines would be a million tokens a second.
    rows = _rows(1.0, 0.9, *[1e-6] * 8)
    assert steady_tokens_per_second(rows, context=8) == pytest.approx(2 * 8 / 0.1, rel=1e-4)


def test_a_stretch_disturbed_by_something_else_does_not_decide():
    quiet, disturbed = _rows(9.0, *[0.5] * 10), _rows(9.0, *[5.0] * 9)
    assert steady_tokens_per_second(quiet + disturbed, context=8) == 2 * 8 / 0.5
    assert steady_tokens_per_second(quiet + disturbed + disturbed, context=8) == 2 * 8 / 5.0


def test_a_growing_batch_counts_by_its_tokens():
    rows = _rows(9.0, 1.0, 1.0, batch=2)
    rows += [{"batch": 6, "seconds": 3.0, "steady": True}] * 2
    assert steady_tokens_per_second(rows, context=8) == 8 * (2 + 2 + 6 + 6) / 8.0


def test_a_run_without_a_steady_step_is_measured_as_a_whole():
    assert steady_tokens_per_second(_rows(3.0) + _rows(1.0), context=8) == 2 * 2 * 8 / 4.0


def test_lines_of_an_older_version_all_count():
    assert steady_tokens_per_second([{"batch": 2, "seconds": 0.5}] * 3, context=8) == 2 * 8 / 0.5


def test_the_peak_is_that_of_all_chips_of_all_islands(monkeypatch):
    monkeypatch.setattr(efficiency, "peak_flops", lambda device: (1e12, "as given"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    two = tiny_config("store", parallel=ParallelConfig(2, 2, "block"), islands=IslandsConfig(2, 2))
    assert Machine.of(two).chips == 8
