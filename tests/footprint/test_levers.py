"""Four levers that multiply, the waterfall of them, and what can't be pulled."""

import math

import pytest

from areca.errors import ConfigError
from areca.footprint.cases import Case, published
from areca.footprint.energy import DEFAULT_GRID
from areca.footprint.levers import parse, what_if
from areca.footprint.waterfall import waterfall

CASE = Case(
    "one",
    100.0,
    "measured",
    "meter",
    1.5,
    DEFAULT_GRID,
    hours=50,
    chips=4,
    chip_hours=200,
    chip="h100",
    flops=7.2e20,
    mfu=0.4,
)  # 500 W and 1e15 FLOP/s a chip


def test_each_lever_divides_what_the_formula_multiplies():
    found = what_if(CASE, parse("flops=3.6e20,watts=250,chip=b200,tflops=2000,pue=1.2,gross=0.1"))
    factors = {x["lever"]: x["carbon_factor"] for x in found["levers"]}
    assert factors == pytest.approx({"Model": 2, "Machine": 4, "Mechanization": 1.25, "Map": 4.29})
    assert found["energy_factor"] == pytest.approx(10)
    assert found["before"]["energy_kwh"]["value"] == pytest.approx(150)
    assert found["after"]["energy_kwh"]["value"] == pytest.approx(15)
    assert found["after"]["carbon_kg"]["value"] == pytest.approx(1.5)
    assert found["carbon_factor"] == pytest.approx(150 * 0.429 / 1.5)
    assert found["after"]["energy_kwh"]["kind"] == "estimated (what-if)"  # no measurement any more
    assert [s["after"] for s in found["steps"]] == ["before", "Model", "Machine", "Mechanization", "Map"]
    assert found["steps"][-1]["carbon_kg"] == pytest.approx(1.5)


def test_factors_do_not_depend_on_the_others_pulled():
    alone = what_if(CASE, parse("pue=1.1"))["levers"][0]["energy_factor"]
    among = what_if(CASE, parse("region=iowa,chip=tpu-v4,pue=1.1"))["levers"]
    assert next(x for x in among if x["lever"] == "Mechanization")["energy_factor"] == alone


def test_another_chip_keeps_the_mfu_or_what_was_published():
    # The same MFU on the chips' own peaks: 989.5 and 2250 dense bfloat16 TFLOP/s, TDP 1000 W.
    b200 = what_if(CASE, {"chip": "b200"})["levers"][0]
    assert b200["energy_factor"] == pytest.approx((500 / 1e15) / (1000 / (0.4 * 2250e12)))
    tpu = what_if(CASE, {"chip": "tpu-v4"})["levers"][0]  # as PaLM's ran
    assert tpu["energy_factor"] == pytest.approx((500 / 1e15) / (378.5 / 84.6e12))
    given = what_if(CASE, {"chip": "b200", "mfu": "0.5"})["levers"][0]
    assert given["energy_factor"] == pytest.approx((500 / 1e15) / (1000 / (0.5 * 2250e12)))


def test_palm_on_its_own_chip_at_its_own_place_is_unchanged():
    found = what_if(published("palm-540b"), parse("chip=tpu-v4,pue=1.08,region=oklahoma"))
    assert found["energy_factor"] == pytest.approx(1, rel=1e-3)
    assert found["carbon_net_factor"] == pytest.approx(1, rel=1e-3)


def test_gross_is_not_compared_with_net():
    found = what_if(published("palm-540b"), parse("region=iowa"))  # of PaLM only net is printed, of Iowa both
    assert found["carbon_factor"] is None
    assert found["carbon_net_factor"] == pytest.approx(0.079 / 0.080)
    found = what_if(CASE, parse("region=oklahoma"))  # the run's is gross, Oklahoma's is net
    assert found["carbon_factor"] is None
    assert found["carbon_net_factor"] is None
    assert found["after"]["carbon_kg"]["value"] is None


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_waterfall_is_drawn(tmp_path, suffix):
    found = what_if(CASE, parse("flops=3.6e20,pue=1.2,gross=0.1"))
    waterfall(found, tmp_path / f"levers.{suffix}")
    data = (tmp_path / f"levers.{suffix}").read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    with pytest.raises(ConfigError, match=r"name an \.svg or a \.png"):
        waterfall(found, tmp_path / "levers.pdf")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("regoin=iowa", "there is no lever 'regoin' (did you mean 'region'?)"),
        ("region=atlantis", "there is no region 'atlantis'"),
        ("region", "has no value"),
        ("pue=0.9", "pue is 0.9"),
        ("pue=1.1,pue=1.2", "pue twice"),
        ("pue=low", "pue is 'low', which is not a number"),
        ("chip=h1000", "there is no chip 'h1000'"),
        ("flops=-1", "flops is -1; it must be a number above 0"),
        ("flops=nan", "flops is nan"),
        ("tflops=0", "tflops is 0"),
        ("mfu=40", "mfu is 40; it is a share"),
        ("gross=429", "thousandth"),
        ("region=iowa,gross=0.1", "give one of them"),
        ("", "is empty"),
        (",", "is empty"),
    ],
)
def test_levers_that_cannot_be_pulled(text, says):
    with pytest.raises(ConfigError) as error:
        what_if(CASE, parse(text))
    assert says in str(error.value)
    assert str(error.value).count("\n") == 0


def test_a_lever_needs_its_figures():
    bare = Case("bare", 1.0, "measured", "meter", 1.0, DEFAULT_GRID)
    for text in ("flops=1e18", "chip=h100"):
        with pytest.raises(ConfigError, match="are not known"):
            what_if(bare, parse(text))
    with pytest.raises(ConfigError, match="no power is published for tpu-v5p"):
        what_if(CASE, parse("chip=tpu-v5p"))
    unknown = Case("unknown", None, "unknown: no sensor", "", 1.0, DEFAULT_GRID)
    with pytest.raises(ConfigError, match="energy of unknown is unknown: no sensor"):
        what_if(unknown, parse("pue=1.1"))
    assert math.isfinite(what_if(bare, parse("pue=1"))["energy_factor"])
