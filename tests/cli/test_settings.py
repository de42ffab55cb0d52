"""Settings of a configuration on the command line."""

import json

import pytest

from areca.cli import settings
from areca.cli.main import main
from areca.cli.options import call
from areca.config import RunConfig, from_dict
from areca.errors import ConfigError
from areca.files import read_json

FILE = """
tokens = 1_000
[model]
vocab_size = 96
d_model = 32
n_layers = 2
n_heads = 2
[data]
store = "somewhere"
[batch]
ramp = [[0, 8], [500, 16]]
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "run.toml").write_text(FILE)
    return str(tmp_path / "run.toml")


def test_settings_are_told_from_the_verbs_own_options():
    argv = ["run.toml", "--out", "my.runs/a.b", "--model.d_model", "64", "--islands", "2", "--tokens=1e6", "--resume"]
    rest, given = settings.split([*argv, "--islands.digest-every=5", "--schedule", "gpipe"])
    assert rest == ["run.toml", "--out", "my.runs/a.b", "--islands", "2", "--resume", "--schedule", "gpipe"]
    assert given == {"model.d_model": "64", "tokens": "1e6", "islands.digest_every": "5"}


def test_what_is_given_counts_over_the_file_field_by_field(path):
    given = {
        "model.d_model": "64", "tokens": "1e6", "optimizer.learning_rate": "3e-3", "guard.enabled": "false",
        "schedule.name": "rsqrt", "schedule.hold_tokens": "1e3", "batch.ramp": "[[0, 32]]", "data.store": "./x y.store",
        "optimizer.clip_norm": "inf", "data.weights": '[["a", 1], ["b", 0.5]]', "optimizer.weight_decay": "0",
    }  # fmt: skip
    found = settings.load(path, given)
    assert (found.model.d_model, found.model.n_layers) == (64, 2)
    assert (found.tokens, found.optimizer.learning_rate, found.guard.enabled) == (1_000_000, 0.003, False)
    assert (found.schedule.name, found.schedule.hold_tokens, found.batch.ramp) == ("rsqrt", 1000, ((0, 32),))
    assert (found.data.store, found.optimizer.clip_norm) == ("./x y.store", float("inf"))
    assert found.data.weights == (("a", 1.0), ("b", 0.5))
    assert settings.load(path, {}) == from_dict(settings.read_table(path), RunConfig)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"modle.d_model": "1"}, r"--modle.d_model is no setting: there is no \[modle\] \(did you mean 'model'"),
        ({"model.d_modle": "1"}, r"model.d_modle is not a setting \(did you mean 'd_model'"),
        ({"model.d_model": "wide"}, "model.d_model is 'wide'; it must be a whole number"),
        ({"model.d_model": "1.5"}, "model.d_model is 1.5; it must be a whole number"),
        ({"tokens.more": "1"}, r"there is no \[tokens\]"),
        ({"model.d_model.x": "1"}, "--model.d_model.x can't be set: d_model is not a table"),
        ({"anneal.weights": "b=3"}, r'^anneal.weights must be a list such as \[\["name", 1.0\]\], not \'b=3\''),
        ({"data.weights": "[1]"}, r"data.weights must be a list of rows of 2 values such as .*1.0\]\], not 1"),
        ({"tokens": "1.5"}, "^tokens is 1.5; it must be a whole number"),
        ({"tokens": "1e300"}, "^tokens is 1e.300; it must be a whole number"),
        ({"schedule.name": "cosin"}, "schedule.name is 'cosin'; choose one of"),
        ({"batch.ramp": "32"}, "batch.ramp must be a list such as ..0, 16.., not 32"),
    ],
)
def test_what_can_not_be_set_is_named(path, given, says):
    with pytest.raises(ConfigError, match=says):
        settings.load(path, given)


def test_a_whole_number_may_be_written_as_a_fraction_in_a_file_too(path, tmp_path):
    (tmp_path / "run.toml").write_text(FILE.replace("1_000", "2e5").replace("[500, 16]", "[5e2, 16.0]"))
    config = settings.load(path, {})
    assert (config.tokens, config.batch.ramp) == (200_000, ((0, 8), (500, 16)))
    assert [type(v) for v in (config.tokens, *config.batch.ramp[1])] == [int, int, int]
    (tmp_path / "run.toml").write_text(FILE.replace("1_000", "1.5"))
    with pytest.raises(ConfigError, match=r"^run\.toml: tokens is 1\.5; it must be a whole number"):
        settings.load(path, {})
    (tmp_path / "run.toml").write_text(FILE + "[aneal]\nstart = 5\n")
    with pytest.raises(ConfigError, match=r"^run\.toml: aneal is not a setting \(did you mean 'anneal'"):
        settings.load(path, {})


def test_options_that_take_whole_numbers_take_powers_of_ten():
    def verb(names: tuple[str, ...], /, *, size: int = 1, count: int | None = None, rows: tuple[int, ...] = (),
             rate: float = 0.5, name: str = "", loud: bool = False) -> tuple:  # fmt: skip
        """A verb."""
        return names, size, count, rows, rate, name, loud

    argv = [
        "1e1",
        "--size",
        "1e3",
        "--count=2.5E2",
        "--rows",
        "1e1",
        "20.0",
        "--rate",
        "1e3",
        "--name",
        "1e3",
        "--loud",
    ]
    assert call(verb, argv, "verb") == (("1e1",), 1000, 250, (10, 20), 1000.0, "1e3", True)
    for wrong in ("1e-3", "1.5", "1e99", "x"):
        with pytest.raises(ConfigError, match=f"--size is '{wrong}', which is not a (whole )?number"):
            call(verb, ["a", "--size", wrong], "verb")


def test_a_setting_without_a_value_or_given_twice_is_refused():
    with pytest.raises(ConfigError, match=r"--model.d_model has no value"):
        settings.split(["run.toml", "--model.d_model"])
    with pytest.raises(ConfigError, match=r"--tokens is given twice"):
        settings.split(["run.toml", "--tokens", "1", "--tokens=2"])


def test_a_run_has_what_was_given_and_goes_on_with_nothing_else(tiny_store, tmp_path, capsys):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"tokens": 256, "data": {"store": str(tiny_store), "context": 16},
                                "model": {"vocab_size": 300, "d_model": 16, "n_layers": 1, "n_heads": 2}}))  # fmt: skip
    argv = ["train", str(path), "--out", str(tmp_path / "run"), "--model.n_layers", "2", "--batch.ramp", "[[0, 4]]"]
    assert main(argv) == 0
    config = read_json(tmp_path / "run" / "run.json")["config"]
    assert (config["model"]["n_layers"], config["batch"]["ramp"]) == (2, [[0, 4]])
    assert main(["train", str(path), "--out", str(tmp_path / "run"), "--resume"]) == 2
    assert "model.n_layers: 2 -> 1" in capsys.readouterr().err
    assert main([*argv, "--resume"]) == 0
    assert main(["train", str(path), "--out", str(tmp_path / "other"), "--model.n_layer", "2"]) == 2
    assert "did you mean 'n_layers'" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
