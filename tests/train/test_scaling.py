"""Several islands on paper: arithmetic by hand, limits that must hold, and what can't be."""

from dataclasses import replace

import pytest

from areca import chips
from areca.errors import ConfigError
from areca.model.config import ModelConfig
from areca.model.counts import count_params
from areca.train.ahead.dryrun import DryRun, _exchange, check
from areca.train.ahead.scaling import Link, over_islands, times
from areca.train.islands.overlap import best_lengths, step_seconds

SMALL = ModelConfig(vocab_size=304, d_model=64, n_layers=12, n_heads=8, head_dim=8, d_ff=128).resolved()
ASKED = DryRun(SMALL, 4, 2, 8, 32, islands=2, link_gbps=1e-3, island_seconds=2.0)
N = 304 * 64 + 12 * (2 * 64 * 64 + 2 * 64 * 8 + 3 * 64 * 128) + 13 * 64


def _scaled(asked, transfers=(), roofline=None):
    return over_islands(asked, {"published": None, "roofline": roofline, "transfers": list(transfers),
                                "islands_exchange": _exchange(asked)})  # fmt: skip


@pytest.mark.parametrize("islands", [2, 4])
def test_after_the_backward_pass_the_exchange_is_bytes_over_speed_and_comes_on_top(islands):
    found = _scaled(replace(ASKED, islands=islands))
    # Two hosts of four chips: each sends half of the bfloat16 gradients to every other island, at 1 Mbit/s.
    takes = (islands - 1) * N * 2 / 2 * 8 / 1e6
    (row,) = found["links"]
    assert row["exchange_seconds"] == pytest.approx(takes)
    assert row["after_backward"]["weak"] == pytest.approx(islands * 2.0 / (2.0 + takes))
    assert row["tbps_of_all_hosts"] == pytest.approx(islands * 2 * 1e6 / 1e12)


@pytest.mark.parametrize("tied", [True, False])
def test_an_islands_step_and_its_bytes_are_split_without_rest(tied):
    asked = replace(ASKED, model=replace(SMALL, tied=tied))
    t = times(asked, 2.0, Link("", "given", 1e6), 0.0)
    assert t.forward + t.head + 12 * t.layer + t.embedding == pytest.approx(2.0)
    # A shared embedding travels twice: the output's part of the gradient first, the input's last.
    again = 304 * 64 if tied else 0
    sent = t.head_bytes + 12 * t.layer_bytes + t.embedding_bytes
    assert sent == pytest.approx((count_params(asked.model).total + again) * 2 / 2)


def test_segments_compute_layers_again_also_where_an_island_alone_does_not():
    alone = times(replace(ASKED, remat="none"), 2.0, Link("", "given", 1e6), 0.0)
    # Of a layer's three products of the forward pass the two of the input come again, and the forward T x T ones.
    D, HK, K, F, T = 64, 64, 8, 128, 32
    forward = 2 * D * (2 * HK + 2 * K + 3 * F) + 4 * HK * T
    again = 2 * D * (HK + 2 * K + 2 * F) + 4 * HK * T
    second = 2.0 / (12 * 3 * forward + 6 * 304 * D)
    assert alone.layer == pytest.approx((2 * forward + again) * second)
    assert alone.forward == pytest.approx(12 * forward * second)


def test_a_link_without_limit_costs_nothing_and_one_that_is_too_slow_is_waited_for():
    fast = _scaled(replace(ASKED, link_gbps=1e9))["links"][0]
    assert fast["after_backward"]["weak"] == pytest.approx(2)
    assert fast["overlapped"]["weak"] == pytest.approx(2, rel=1e-3)
    slow = _scaled(replace(ASKED, link_gbps=1e-6))["links"][0]
    # Nothing hides 3,000 s behind 2 s; the shared embedding's second part makes overlapped the slower one.
    assert slow["after_backward"]["step_seconds"] < slow["overlapped"]["step_seconds"]
    assert slow["overlapped"]["step_seconds"] == pytest.approx((N + 304 * 64) * 8 / 1e3, rel=1e-3)


def test_strong_scaling_is_at_most_weak_and_less_by_transfers_that_do_not_grow():
    chip = chips.Chip("mine", {"bfloat16": 1e12}, 1e9, 1e12, interconnect_bytes_per_second=1e9)
    gathered = {"axis": "data", "kind": "all-gather", "bytes": 5e8}
    other = {"axis": "model", "kind": "all-gather", "bytes": 9e9}
    after = _scaled(replace(ASKED, chip=chip), [gathered, other])["links"][0]["after_backward"]
    # One island with all sequences: 2 x 2 s, but the half second of weights only once.
    assert after["strong_at_least"] == pytest.approx(3.5 / after["step_seconds"])
    assert after["strong_at_most"] == after["weak"]
    assert _scaled(ASKED)["links"][0]["after_backward"]["strong_at_least"] == after["weak"]


def test_the_speed_that_is_needed_reaches_the_efficiency_and_a_slower_one_does_not():
    need = _scaled(ASKED)["needed"]
    assert need["efficiency"] == 0.975
    hosts = 4
    for share, reached in ((1.001, True), (0.98, False)):
        row = _scaled(replace(ASKED, link_gbps=share * need["after_backward_tbps"] * 1e3 / hosts))["links"][0]
        assert (row["after_backward"]["efficiency"] >= 0.975) is reached
        row = _scaled(replace(ASKED, link_gbps=share * need["overlapped_tbps"] * 1e3 / hosts))["links"][0]
        assert (row["overlapped"]["efficiency"] >= 0.975) is reached
    assert need["overlapped_tbps"] < 0.25 * need["after_backward_tbps"]


def test_segments_whose_ends_cost_more_than_they_hide_are_few():
    chip = chips.Chip("mine", {"bfloat16": 1e12}, 1e9, 1e12, interconnect_bytes_per_second=1e9)
    gathered = {"axis": "data", "kind": "all-gather", "bytes": 12 * 2e8}  # 0.1 s a layer
    asked = replace(ASKED, link_gbps=1e-2)
    free, dear = (_scaled(a, [gathered])["links"][0] for a in (asked, replace(asked, chip=chip)))
    assert free["overlapped"]["segments"] > dear["overlapped"]["segments"]
    t = times(asked, 2.0, Link("", "given", 1e7), 0.1001)
    assert dear["overlapped"]["step_seconds"] == pytest.approx(step_seconds(t, best_lengths(t, 12)))


def test_without_an_islands_step_there_are_only_seconds_of_the_exchange():
    found = _scaled(replace(ASKED, island_seconds=0.0, link_gbps=0.0))
    assert found["island_seconds"] is None
    assert [r["link"] for r in found["links"]] == ["as slow as PaLM's 1.95x", "PaLM's burst of 81 Tbps"]
    assert all(r["after_backward"] is None and r["exchange_seconds"] > 0 for r in found["links"])
    assert found["needed"] is None
    assert "give island-seconds" in found["assumptions"][0]["what"]


def test_one_island_has_nothing_to_scale():
    assert _scaled(replace(ASKED, islands=1)) is None


@pytest.mark.parametrize("name", ["link_gbps", "island_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_speed_or_time_that_is_none_is_refused(name, value):
    with pytest.raises(
        ConfigError, match=f"{name.replace('_', '-')} is {value}; give a number above 0, or leave it out"
    ):
        check(replace(ASKED, **{name: value}))
