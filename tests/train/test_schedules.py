"""Learning rate and batch over tokens, against PaLM's published schedules and closed forms."""

import math

import pytest

from areca.config import BatchConfig, ScheduleConfig
from areca.errors import ConfigError
from areca.train.schedules import batch_at, check, learning_rate_fraction, steps

PALM_RAMP = ((0, 512), (50_000 * 512 * 2048, 1024), (50_000 * 512 * 2048 + 65_000 * 1024 * 2048, 2048))


def test_warmup_rises_in_proportion_to_the_tokens():
    schedule = ScheduleConfig(name="constant", warmup_tokens=1000)
    assert [learning_rate_fraction(schedule, t, 10_000) for t in (0, 250, 999, 1000, 9000)] == [
        0.0, 0.25, 0.999, 1.0, 1.0,
    ]  # fmt: skip


def test_cosine_ends_at_its_final_fraction_at_the_last_token():
    schedule = ScheduleConfig(name="cosine", warmup_tokens=100, final_fraction=0.1)
    rate = [learning_rate_fraction(schedule, t, 1100) for t in (100, 350, 600, 850, 1100)]
    half = math.sqrt(0.5)  # cos 45 degrees, a quarter of the way
    assert rate == pytest.approx([1.0, 0.1 + 0.45 * (1 + half), 0.55, 0.1 + 0.45 * (1 - half), 0.1])
    assert learning_rate_fraction(schedule, 1200, 1100) == pytest.approx(0.1)  # the last batch may overshoot


def test_linear_falls_in_a_line_from_the_end_of_the_warm_up():
    schedule = ScheduleConfig(name="linear", warmup_tokens=100, final_fraction=0.2)
    rate = [learning_rate_fraction(schedule, t, 1100) for t in (50, 100, 350, 600, 1100, 1200)]
    assert rate == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.2, 0.2])


@pytest.mark.parametrize(("decay", "quarter"), [("linear", 0.75), ("sqrt", 0.5)])
def test_wsd_is_constant_and_decays_over_the_last_tokens_only(decay, quarter):
    schedule = ScheduleConfig(name="wsd", warmup_tokens=100, final_fraction=0.0, decay_tokens=400, decay=decay)
    rate = [learning_rate_fraction(schedule, t, 1100) for t in (50, 100, 600, 700, 800, 1100, 1150)]
    assert rate == pytest.approx([0.5, 1.0, 1.0, 1.0, quarter, 0.0, 0.0])
    # The same run of another length is the same until the shorter one's decay begins.
    longer = [learning_rate_fraction(schedule, t, 2100) for t in (50, 100, 600, 700)]
    assert longer == rate[:4]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (ScheduleConfig("wsd"), "decay_tokens is 0; it must lie between 1 and the tokens after the warm-up, 1000"),
        (
            ScheduleConfig("wsd", warmup_tokens=300, decay_tokens=701),
            "warmup_tokens 300 and .*decay_tokens 701 .* 1000;",
        ),
        (ScheduleConfig("wsd", warmup_tokens=1000), "warmup_tokens 1000 and .*; lower one"),
        (
            ScheduleConfig("cosine", hold_tokens=5),
            "hold_tokens is 5 and schedule.name is 'cosine'; only 'rsqrt' has it",
        ),
        (ScheduleConfig("linear", decay="sqrt"), "decay is 'sqrt' and schedule.name is 'linear'; only 'wsd' has it"),
        (
            ScheduleConfig("constant", final_fraction=0.5),
            "only 'cosine' and 'linear' and 'wsd' have it, so leave it out or set it to 0.1",
        ),
        (
            ScheduleConfig("linear", decay_tokens=5),
            "decay_tokens is 5 and schedule.name is 'linear'; only 'wsd' has it",
        ),
    ],
)
def test_a_decay_that_can_not_be_is_refused(schedule, says):
    with pytest.raises(ConfigError, match=says):
        check(schedule, BatchConfig(((0, 1),)), 1000, 10)


def test_cosine_that_warms_up_to_the_end_does_not_divide_by_zero():
    assert learning_rate_fraction(ScheduleConfig(warmup_tokens=500), 500, 500) == 1.0


@pytest.mark.parametrize(("step", "rate"), [(1, 1e-2), (10_000, 1e-2), (40_000, 5e-3), (250_000, 2e-3)])
def test_rsqrt_is_palms(step, rate):
    # "1e-2 for the first 10,000 steps, which is then decayed at a rate of 1/sqrt(k)": 1/sqrt(10,000) is 1e-2.
    a_step = 512 * 2048
    schedule = ScheduleConfig(name="rsqrt", hold_tokens=10_000 * a_step)
    assert 1e-2 * learning_rate_fraction(schedule, step * a_step, 10**12) == pytest.approx(rate)


def test_palms_batches():
    # 512 sequences to step 50k, 1024 to step 115k, 2048 to the end at 255k; about 780 billion tokens.
    plan = list(steps(BatchConfig(PALM_RAMP), 50_000 * 2**20 + 65_000 * 2**21 + 140_000 * 2**22, 2048))
    sizes = {p.step: p.batch for p in plan}
    assert [sizes[k] for k in (1, 50_000, 50_001, 115_000, 115_001, 255_000)] == [512, 512, 1024, 1024, 2048, 2048]
    assert len(plan) == 255_000
    assert plan[-1].tokens == pytest.approx(780e9, rel=0.02)


def test_steps_read_every_example_once_and_count_tokens():
    plan = list(steps(BatchConfig(((0, 2), (30, 3), (60, 5))), 150, 10))
    # A boundary inside a step (30 is reached at 40 tokens) takes effect at the next.
    assert [p.batch for p in plan] == [2, 2, 3, 5, 5]
    assert [p.first_example for p in plan] == [0, 2, 4, 7, 12]
    assert [p.tokens for p in plan] == [20, 40, 70, 120, 170]
    assert [p.step for p in plan] == [1, 2, 3, 4, 5]


def test_skipped_examples_are_read_by_no_step_and_advance_nothing():
    ramp = BatchConfig(((0, 2), (30, 3), (60, 5)))
    plan = list(steps(ramp, 150, 10))
    # Example 2 begins at the first range; steps of 3 and 5 would touch the second and third and start past them.
    skipping = list(steps(ramp, 150, 10, [(2, 5), (8, 9), (13, 20)]))
    assert [p.first_example for p in skipping] == [0, 5, 9, 20, 25]
    assert [(p.step, p.batch, p.tokens) for p in skipping] == [(p.step, p.batch, p.tokens) for p in plan]


def test_a_skipped_range_that_no_step_reaches_changes_nothing():
    ramp = BatchConfig(((0, 4),))
    assert list(steps(ramp, 100, 10, [(12, 99)])) == list(steps(ramp, 100, 10))


def test_the_last_step_is_whole():
    plan = list(steps(BatchConfig(((0, 4),)), 100, 10))
    assert [p.tokens for p in plan] == [40, 80, 120]


def test_a_ramps_boundary_belongs_to_the_larger_batch():
    ramp = BatchConfig(((0, 4), (100, 8)))
    assert [batch_at(ramp, t) for t in (0, 99, 100, 10**15)] == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("schedule", "ramp", "tokens", "says"),
    [
        ({}, (), 1000, r"batch.ramp is \[\]; .* as in \[\[0, 16\]\]"),
        ({}, ((5, 4),), 1000, r"batch.ramp is \[\[5, 4\]\]; its first row must start at token 0"),
        ({}, ((0, 4), (50, 8), (50, 16)), 1000, "must increase"),
        ({}, ((0, 4), (50, 8), (20, 16)), 1000, "must increase"),
        ({}, ((0, 4), (50, 0)), 1000, "0 sequences a step"),
        ({}, ((0, 4),), 39, "tokens is 39, less than one batch of 4 x 10 = 40"),
        ({"warmup_tokens": 1001}, ((0, 4),), 1000, "warmup_tokens is 1001"),
        ({"warmup_tokens": -1}, ((0, 4),), 1000, "warmup_tokens is -1"),
        ({"final_fraction": 1.5}, ((0, 4),), 1000, "final_fraction is 1.5"),
        ({"name": "rsqrt"}, ((0, 4),), 1000, "needs schedule.hold_tokens"),
    ],
)
def test_what_cannot_be_followed_is_said(schedule, ramp, tokens, says):
    with pytest.raises(ConfigError, match=says):
        check(ScheduleConfig(**schedule), BatchConfig(ramp), tokens, 10)
