"""The cheapest hours of a table, by hand, and tables that can't be used."""

import pytest

from areca.errors import ConfigError, DataError
from areca.footprint.when import best_start, read_intensity


def _day(dip_at, high=400.0, low=100.0):
    """24 hours with three cheap ones from `dip_at` on."""
    return [low if (h - dip_at) % 24 < 3 else high for h in range(24)]


def _table(tmp_path, rows, header="region,hour,g_per_kwh"):
    path = tmp_path / "grid.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_the_cheapest_hours_of_a_day_are_found_over_midnight(tmp_path):
    rows = [f"north,{h},{v}" for h, v in enumerate(_day(23))] + [f"south,{h},350" for h in range(24)]
    north, south = best_start(read_intensity(_table(tmp_path, rows)), 3)
    assert (north.region, north.start, north.start_hour) == ("north", "23:00", 23)
    assert north.kg_per_kwh == pytest.approx(0.1)  # g/kWh in the table, kg here
    assert north.worst_kg_per_kwh == pytest.approx(0.4)
    assert north.mean_kg_per_kwh == pytest.approx((3 * 100 + 21 * 400) / 24 / 1000)
    assert south.kg_per_kwh == pytest.approx(0.35)


def test_a_part_of_an_hour_counts_as_a_part(tmp_path):
    rows = [f"x,{h},{v}" for h, v in enumerate(_day(5))]
    [window] = best_start(read_intensity(_table(tmp_path, rows)), 3.5)
    assert window.start == "05:00"
    assert window.kg_per_kwh == pytest.approx((3 * 100 + 0.5 * 400) / 3.5 / 1000)
    # A week: whole days are the same wherever they start, and the odd hours go to the dip.
    [week] = best_start(read_intensity(_table(tmp_path, rows)), 7 * 24 + 3)
    assert week.start == "05:00"
    assert week.kg_per_kwh == pytest.approx((7 * (3 * 100 + 21 * 400) + 300) / (7 * 24 + 3) / 1000)


def test_hours_with_dates_do_not_go_round(tmp_path):
    rows = [f"x,2026-01-31T{h:02}:00,{v}" for h, v in zip(range(20, 24), (0.4, 0.3, 0.1, 0.2), strict=True)]
    rows.append("x,2026-02-01T00:00,0.05")
    table = read_intensity(_table(tmp_path, rows, "region,timestamp,kg_per_kwh"))
    [window] = best_start(table, 2)
    assert (window.start, window.kg_per_kwh) == ("2026-01-31 23:00", pytest.approx(0.125))
    with pytest.raises(ConfigError, match="the table has 5 hours of x, fewer than the 6"):
        best_start(table, 6)


def test_regions_can_be_chosen(tmp_path):
    rows = [f"{r},{h},{v}" for r, v in (("a", 300), ("b", 200)) for h in range(24)]
    table = read_intensity(_table(tmp_path, rows))
    assert [w.region for w in best_start(table, 1)] == ["b", "a"]
    assert [w.region for w in best_start(table, 1, ["A"])] == ["a"]
    with pytest.raises(ConfigError, match="no region 'c'"):
        best_start(table, 1, ["c"])
    for hours in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="hours is"):
            best_start(table, hours)


@pytest.mark.parametrize(
    ("header", "rows", "says"),
    [
        ("region,hour,g_per_kwh,kg_per_kwh", ["x,0,400,0.4"], "in two units (kg_per_kwh and g_per_kwh)"),
        ("region,hour,kg_per_kwh", ["x,0,0.4", "x,1,400"], "line 3: kg_per_kwh is 400, more than any grid emits"),
        ("region,hour,g_per_kwh", ["x,0,400", "x,1,0.38"], "line 3: g_per_kwh is 0.38, less than any grid emits"),
        ("region,hour,kg_per_mwh", ["x,0,400"], "it needs region, one of hour and timestamp, and one of kg_per_kwh"),
        ("region,hour,timestamp,kg_per_kwh", [], "one of hour and timestamp"),
        ("region,hour,kg_per_kwh", [], "has no rows"),
        ("region,hour,kg_per_kwh", ["x,0,0.4"], "lacks the hour 1 of x"),
        ("region,hour,kg_per_kwh", ["x,0,0.4", "x,0,0.3"], "a second time"),
        ("region,hour,kg_per_kwh", ["x,24,0.4"], "hour is '24'"),
        ("region,hour,kg_per_kwh", ["x,0,-0.4"], "at least 0"),
        ("region,hour,kg_per_kwh", ["x,0,nan"], "at least 0"),
        ("region,hour,kg_per_kwh", ["x,0,much"], "which is not a number"),
        ("region,hour,kg_per_kwh", ["x,0"], "which is not a number"),
        ("region,hour,kg_per_kwh", [",0,0.4"], "line 2 names no region"),
        ("region,timestamp,kg_per_kwh", ["x,yesterday,0.4"], "timestamp is 'yesterday'"),
        ("region,timestamp,kg_per_kwh", ["x,2026-01-31T13:30,0.4"], "a full hour"),
        (
            "region,timestamp,kg_per_kwh",
            ["x,2026-01-31T13:00,0.4", "x,2026-01-31T14:00+00:00,0.4"],
            "with and without a time zone",
        ),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, header, rows, says):
    with pytest.raises(DataError) as error:
        read_intensity(_table(tmp_path, rows, header))
    assert says in str(error.value)


def test_no_table_is_said(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_intensity(tmp_path / "none.csv")
    with pytest.raises(DataError, match="is no table in CSV"):
        read_intensity(tmp_path)
