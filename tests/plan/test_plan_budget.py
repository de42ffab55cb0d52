"""Budgets in money, chip-hours and hours become exact FLOPs, and costs go back the same way."""

import pytest

from areca.chips import chip
from areca.errors import ConfigError
from areca.plan.budget import ASSUMED_MFU, Purchase, budget_of, machine_of
from areca.plan.cost import cost_on

PEAK = 989.5e12  # H100 SXM, bfloat16, dense: NVIDIA's data sheet


def _flops(purchase, **others):
    purchase.check()
    budget = budget_of(purchase, machine_of(purchase, **others))
    assert budget is not None
    return budget.flops


def test_the_same_money_hours_and_deadline_are_the_same_flops():
    # 1,000 chip-hours at half the peak.
    expected = 1000 * 3600 * PEAK * 0.5
    for given in ({"usd": 2000, "usd_per_chip_hour": 2}, {"chip_hours": 1000}, {"deadline_hours": 125, "chips": 8}):
        assert _flops(Purchase(chip="h100", mfu=0.5, **given)) == pytest.approx(expected)
    assert _flops(Purchase(flops=3e20)) == 3e20


def test_palms_run_by_its_chip_hours_and_mfu_is_the_flops_it_reports():
    # Chowdhery et al. 2022: 780 billion tokens at 238.3K tokens/s on 6144 chips, an MFU of 46.2%; 2.56e24 FLOPs.
    hours = 780e9 / 238.3e3 / 3600
    purchase = Purchase(deadline_hours=hours, chips=6144, chip="tpu-v4", mfu=0.462)
    assert _flops(purchase) == pytest.approx(2.56e24, rel=0.003)


def test_the_mfu_is_the_runs_own_on_their_chip_and_an_assumption_elsewhere():
    ran = (chip("h100"), 0.31, "run-7")
    own = machine_of(Purchase(chip_hours=1, chip="h100"), ran)
    assert (own.mfu, own.mfu_source) == (0.31, "measured in run-7 on this chip")
    for observed, name in ((ran, "h200"), (None, "h100")):
        other = machine_of(Purchase(chip_hours=1, chip=name), observed)
        assert other.mfu == ASSUMED_MFU
        assert other.mfu_source.startswith("assumed")
    assert machine_of(Purchase(chip_hours=1, chip="h100", mfu=0.5), ran).mfu == 0.5


def test_what_a_run_costs():
    p = Purchase(flops=1.0, chip="h100", mfu=0.5, chips=10, usd_per_chip_hour=3.0, watts=500, pue=1.2, kg_per_kwh=0.1)
    p.check()
    cost = cost_on(machine_of(p), p, 200 * 3600 * PEAK * 0.5)
    assert cost["chip_hours"] == pytest.approx(200)
    assert cost["hours"] == pytest.approx(20)
    assert cost["usd"] == pytest.approx(600)
    assert cost["energy_kwh"]["value"] == pytest.approx(200 * 0.5 * 1.2)
    assert cost["energy_kwh"]["kind"] == "assumed"
    assert cost["carbon_kg"]["value"] == pytest.approx(12)


def test_power_is_the_tdp_where_there_is_one_and_unknown_where_not():
    known, unknown = Purchase(flops=1.0, chip="h100", mfu=0.4), Purchase(flops=1.0, chip="tpu-v4", mfu=0.4)
    cost = cost_on(machine_of(known), known, 100 * 3600 * PEAK * 0.4)
    assert cost["energy_kwh"]["value"] == pytest.approx(100 * 0.7 * 1.10)
    assert cost["energy_kwh"]["kind"] == "estimated (TDP)"
    assert "PUE 1.10 assumed" in cost["energy_kwh"]["source"]
    assert cost["usd"] is None
    assert cost["hours"] is None
    nothing = cost_on(machine_of(unknown), unknown, 1e20)["energy_kwh"]
    assert nothing["value"] is None
    assert "give --watts" in nothing["kind"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "there is no budget; give one of --flops"),
        ({"flops": 1e20, "usd": 5.0}, "--flops and --usd are both budgets"),
        ({"usd": 5.0}, "give --usd-per-chip-hour and --chip too"),
        ({"chip_hours": 5.0}, "give --chip too"),
        ({"deadline_hours": 5.0, "chip": "h100"}, "give --chips too"),
        ({"flops": 1e20, "mfu": 0.4}, "--mfu says something of a chip, and none is named"),
        ({"flops": -1.0}, "--flops is -1; it must be a positive number, such as 2e13"),
        ({"chip_hours": float("nan"), "chip": "h100"}, "--chip-hours is nan"),
        ({"chip_hours": 1.0, "chip": "h100", "mfu": 1.01}, "--mfu is 1.01"),
        ({"chip_hours": 1.0, "chip": "h100", "mfu": 0.0}, "--mfu is 0.0"),
        ({"chip_hours": 1.0, "chip": "h100", "pue": 0.5}, "--pue is 0.5"),
        ({"deadline_hours": 1.0, "chip": "h100", "chips": 0}, "--chips is 0"),
        (
            {"chip_hours": 1.0, "chip": "h100", "watts": -3.0},
            "--watts is -3; it must be a positive number, such as 400",
        ),
        ({"flops": 1e300}, r"--flops is 1e\+300; it must be below 1e\+40, such as 2e13"),
        ({"flops": 0.0, "usd": 1e4}, "--flops and --usd are both budgets"),
        ({"deadline_hours": 0.0, "chip": "h100", "chips": 1}, "--deadline-hours is 0; .* such as 72"),
        ({"chip_hours": 1.0, "chip": "h100", "usd_per_chip_hour": 0.0}, "--usd-per-chip-hour is 0; .* such as 2.5"),
        (
            {"chip_hours": 1.0, "chip": "h100", "kg_per_kwh": 429.0},
            r"--kg-per-kwh is 429 kg .* a thousandth of it \(0.429\)",
        ),
    ],
)
def test_what_is_no_budget(given, says):
    with pytest.raises(ConfigError, match=says):
        Purchase(**given).check()
