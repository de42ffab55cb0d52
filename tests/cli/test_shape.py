"""The options of a model's shape, which verbs share, and units as a person reads them."""

import inspect
import json

import pytest

from areca.cli.count import count
from areca.cli.dryrun import dryrun
from areca.cli.main import main
from areca.cli.units import byte_size, duration, short

SHAPE = ["model", "context", "vocab_size", "d_model", "n_layers", "n_heads", "head_dim", "d_ff"]


@pytest.mark.parametrize("verb", [count, dryrun])
def test_verbs_that_take_a_shape_take_all_of_it(verb):
    names = list(inspect.signature(verb).parameters)
    assert set(SHAPE) <= set(names)
    assert "shape" not in names
    assert names[0] == "model"
    assert names[-1] == "json"
    assert all(f"    {name}: " in verb.__doc__ for name in names)


def test_each_of_a_shapes_options_arrives(capsys):
    sizes = {"vocab_size": 300, "d_model": 32, "n_layers": 3, "n_heads": 2, "head_dim": 6, "d_ff": 40}
    words = [word for name, n in sizes.items() for word in ("--" + name.replace("_", "-"), str(n))]
    assert main(["count", *words, "--context", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["context"] == 64
    assert sizes.items() <= found["config"].items()


def test_a_width_overrides_a_models_own(capsys):
    assert main(["count", "palm-8b", "--n-layers", "2", "--json"]) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["n_layers"], config["d_model"]) == (2, 4096)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12, "12 B"),
        (4096, "4.00 KiB"),
        (703_589_160, "671 MiB"),
        (1_407_178_320, "1.31 GiB"),
        (16_260_108_376, "15.1 GiB"),
        (2**40 - 1, "1,024 GiB"),
        (2.16e12, "1.96 TiB"),
    ],
)
def test_bytes_have_three_figures_and_a_fitting_unit(value, shown):
    assert byte_size(value) == shown


def test_counts_and_durations_have_fitting_units():
    assert [short(n) for n in (7, 40_420, 540.356e9)] == ["7", "40.42 k", "540.36 B"]
    assert [duration(s) for s in (17.6, 0.0563, 3.23e-6, 4.06e-8)] == ["17.6 s", "56.3 ms", "3.23 us", "40.6 ns"]
