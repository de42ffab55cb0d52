"""The table of chips: figures as published, unknown devices, and files that describe a chip of one's own."""

import json
from pathlib import Path

import pytest

from areca.chips import CHIPS, chip, for_device_kind, load_chip
from areca.cli.main import main
from areca.errors import ConfigError, DataError

MINE = """
name = "mine"
device_kinds = ["Mine 9000"]
memory_bytes = 64e9
memory_bytes_per_second = 2e12
tdp_watts = 450
peak_flops = { bfloat16 = 500e12, float32 = 60e12 }
sources = { peak_flops = "measured" }
"""


@pytest.mark.parametrize(
    ("name", "tera", "gigabytes_per_second", "both_directions"),
    [
        # As printed by the makers: bfloat16 without sparsity, memory bandwidth, all links of a chip in both directions.
        ("tpu-v4", 275, 1200, 600),
        ("tpu-v5e", 197, 819, 400),
        ("tpu-v5p", 459, 2765, 1200),
        ("tpu-v6e", 918, 1638, 800),
        ("a100-40gb", 624 / 2, 1555, 600),
        ("a100-80gb", 624 / 2, 2039, 600),
        ("h100", 1979 / 2, 3350, 900),
        ("h200", 1979 / 2, 4800, 900),
        ("b200", 4500 / 2, 8000, 1800),
    ],
)
def test_figures_are_the_published_ones(name, tera, gigabytes_per_second, both_directions):
    c = chip(name)
    assert c.peak() == tera * 1e12
    assert c.memory_bytes_per_second == gigabytes_per_second * 1e9
    assert c.interconnect_bytes_per_second == both_directions * 1e9 / 2


def test_every_figure_has_a_source_and_no_source_is_an_address():
    assert len(CHIPS) == 9
    for c in CHIPS.values():
        figures = {f for f in c.__dataclass_fields__ if f.endswith(("flops", "_bytes", "_second", "_watts"))}
        assert set(c.sources) == figures
        assert all(len(text) > 10 and "//" not in text for text in c.sources.values())
        for f in figures:
            assert (getattr(c, f) is None) == c.sources[f].startswith("none published")


def test_peaks_double_from_tf32_to_bfloat16_to_float8():
    # NVIDIA's tensor cores: each type is twice as fast as the one before; sparse figures slipped in would show.
    for name in ("a100-40gb", "a100-80gb", "h100", "h200", "b200"):
        peaks = chip(name).peak_flops
        assert peaks["bfloat16"] / peaks["tf32"] == pytest.approx(2, rel=0.03)
        assert peaks.get("float8", 2 * peaks["bfloat16"]) == 2 * peaks["bfloat16"]


def test_a_device_is_the_chip_that_jax_names_or_none():
    assert for_device_kind("NVIDIA H200") is CHIPS["h200"]
    assert for_device_kind("TPU v5 lite") is CHIPS["tpu-v5e"]
    for stranger in ("NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "TPU v3", "H200", "cpu", ""):
        assert for_device_kind(stranger) is None
    kinds = [k for c in CHIPS.values() for k in c.device_kinds]
    assert len(kinds) == len(set(kinds))


def test_a_device_that_is_not_in_the_table_has_no_peak():
    from types import SimpleNamespace

    from areca.train.efficiency import peak_flops

    def device(kind):
        return SimpleNamespace(platform="gpu", device_kind=kind)

    assert peak_flops(device("NVIDIA H200")) == (989.5e12, f"h200, bfloat16: {chip('h200').sources['peak_flops']}")
    assert peak_flops(device("NVIDIA L4")) == (None, "unknown: NVIDIA L4 is not in the table of chips")
    assert peak_flops(device("TPU v4"), "float8") == (None, "unknown: no peak of tpu-v4 is published for float8")


def test_names_are_forgiving_and_unknown_ones_get_the_closest():
    assert chip("TPU_v5p") is chip("tpu v5p") is chip("TPU v5") is CHIPS["tpu-v5p"]
    assert chip("H100") is CHIPS["h100"]
    with pytest.raises(ConfigError, match=r"no chip 'h10' \(did you mean 'h100'\?\); name one of tpu-v4, .*b200, or a"):
        chip("h10")
    with pytest.raises(ConfigError, match="tpu-v4 has no published peak for float8, only for bfloat16"):
        chip("tpu-v4").peak("float8")


def test_a_file_describes_your_own_chip(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    mine = chip(str(path))
    assert (mine.name, mine.peak(), mine.tdp_watts, mine.device_kinds) == ("mine", 500e12, 450.0, ("Mine 9000",))
    assert mine.network_bytes_per_second is None
    assert mine.sources["peak_flops"] == "measured"
    assert mine.sources["memory_bytes"] == str(path)
    known = {"name": "x", "memory_bytes": 1, "memory_bytes_per_second": 1, "peak_flops": {"bfloat16": 1}}
    (tmp_path / "x.json").write_text(json.dumps(known))
    assert load_chip(tmp_path / "x.json").peak() == 1.0


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("memory_bytes =", "memory_byte =", r"memory_byte is no figure of a chip \(did you mean 'memory_bytes'\?\)"),
        ("memory_bytes = 64e9", "", "describes no chip without memory_bytes"),
        ('"mine"', "3", "name is 3; it must be text"),
        ('["Mine 9000"]', '"Mine"', "device_kinds is 'Mine'; it must be a list of texts"),
        ("64e9", "-1", "memory_bytes is -1; it must be a number above 0"),
        ("64e9", "nan", "memory_bytes is nan; it must be a number above 0"),
        ("450", "true", "tdp_watts is True; it must be a number above 0"),
        ("450", "inf", "tdp_watts is inf; it must be a number above 0"),
        ("500e12", '"fast"', "peak_flops.bfloat16 is 'fast'"),
        ("bfloat16 =", "bf16 =", r"peak_flops.bf16 is no type \(did you mean"),
        ("{ bfloat16 = 500e12, float32 = 60e12 }", "5e12", "it must be a table such as { bfloat16"),
        ('{ peak_flops = "measured" }', "[1]", "sources is .1.; it must be a table of texts"),
        ("name =", "name", "is not valid TOML"),
    ],
)
def test_a_file_that_describes_no_chip_is_refused_in_one_sentence(tmp_path, old, new, says):
    assert old in MINE
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace(old, new))
    with pytest.raises(ConfigError, match=says) as refused:
        chip(str(path))
    assert str(refused.value).count("\n") == 0
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_or_no_table_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.toml does not exist"):
        chip(str(tmp_path / "absent.toml"))
    with pytest.raises(DataError, match=r"absent\.json does not exist"):
        chip(str(tmp_path / "absent.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="must be a table of a chip's figures"):
        chip(str(tmp_path / "list.json"))


def test_count_lists_the_chips_with_their_sources(capsys):
    assert main(["count", "--chip", "list"]) == 0
    shown = capsys.readouterr().out
    for c in CHIPS.values():
        assert c.name in shown
        assert all(text in shown for text in c.sources.values())
    assert max(map(len, shown.splitlines())) <= 120
    assert main(["count", "--chip", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[7]["peak_flops"]["bfloat16"] == 989.5e12
    assert main(["count", "palm-8b", "--chip", "h20", "--tokens-per-second", "1"]) == 2
    assert "did you mean 'h200'?" in capsys.readouterr().err


def test_the_file_shown_in_the_documentation_is_a_chip(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "efficiency.md").read_text()
    block = page[page.index('    name = "mine"') :]
    (tmp_path / "mine.toml").write_text("\n".join(line[4:] for line in block.splitlines()))
    mine = load_chip(tmp_path / "mine.toml")
    assert (mine.peak("float32"), mine.interconnect_bytes_per_second, mine.tdp_watts) == (60e12, 300e9, 450.0)
