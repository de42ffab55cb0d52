"""A user's mistake gets one sentence and exit code 2, whatever the verb; nothing is left behind."""

import json

import pytest

from areca.cli.main import main
from areca.config import differences


@pytest.fixture
def table(tmp_path):
    """A table of runs that follow L = 1.7 + 400 / N^0.34 + 410 / D^0.28."""
    pairs = [(n, d) for n in (1e6, 3e6, 1e7, 3e7, 1e8) for d in (1e8, 1e9, 1e10)]
    rows = ["n,d,l", *(f"{n},{d},{1.7 + 400 / n**0.34 + 410 / d**0.28}" for n, d in pairs)]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def _refused(capsys, argv, *words):
    assert main([str(a) for a in argv]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    for word in words:
        assert word in error
    return error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budgets", "nan", "1e9"], ["budgets", "nan"]),
        (["--budgets", "inf"], ["budgets", "inf"]),
        (["--budgets", "1e9", "--sizes", "1000"], ["sizes is 1000"]),
        (["--budgets", "1e9", "--context", "0"], ["context is 0"]),
        (["--budgets", "1e9", "--seed", "-1"], ["seed"]),
        (["--budgets", "1e9", "--epochs", "nan"], ["epochs is nan"]),
        (["--budgets", "1e8", "--sizes", "1", "--context", "16", "--workers", "-1"], ["workers is -1"]),
        (["--budgets", "1e8", "--seeds", "0"], ["seeds is 0"]),
        (["--budgets", "1e8", "--learning-rates", "0.5,two"], ["--learning-rates is 'two', which is not a number"]),
        (["--budgets", "1e8", "--learning-rates", "1", "-2"], ["learning rates are [1.0, -2.0]"]),
        (["--budgets", "1e8", "--together", "gpu"], ["together"]),
        (["--vary", "data", "--budgets", "1e8"], ["--budgets is for ladders that vary size, and this one varies data"]),
        (
            ["--budgets", "1e8", "--widths", "16"],
            ["--widths is for ladders that vary data or shape or context or batch"],
        ),
        (["--vary", "data", "--fractions", "half"], ["--fractions is 'half', which is not a number"]),
        (["--vary", "data", "--fractions", "0"], ["give different numbers above 0"]),
        (["--vary", "batch", "--tokens", "0"], ["--tokens is 0"]),
        (["--vary", "depth"], ["vary"]),
    ],
)
def test_ladders_that_cannot_be(capsys, tiny_store, tmp_path, options, words):
    _refused(capsys, ["ladder", tiny_store, "--out", tmp_path / "out", *options], *words)


def test_budgets_in_any_order_and_none_twice(capsys, tiny_store, tmp_path):
    """Runs are named by three digits of their budget, so two closer than that would be one."""
    ladder = ["ladder", tiny_store, "--out", tmp_path / "out", "--context", "16", "--budgets"]
    _refused(capsys, [*ladder, "1.0001e8", "1e8"], "a budget is given twice, to three digits")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", "-1"], ["seed is -1"]),
        (["--seed", str(2**32)], ["seed is 4294967296"]),
        (["--drop-highest", "-1"], ["drop_highest is -1"]),
        (["--delta", "inf"], ["delta is inf"]),
        (["--bootstrap", "100000000000"], ["the bootstrap has 100000000000 samples"]),
    ],
)
def test_seeds_that_cannot_be(capsys, table, options, words):
    columns = ["--n-params", "n", "--n-tokens", "d", "--loss", "l"]
    _refused(capsys, ["fit", table, *columns, *options], *words)


def test_a_file_where_a_directory_must_be_is_named(capsys, table, tmp_path):
    columns = ["--n-params", "n", "--n-tokens", "d", "--loss", "l"]
    assert main(["fit", str(table), *columns, "--bootstrap", "50", "--out", str(tmp_path / "law.json")]) == 0
    capsys.readouterr()
    shape = ["--flops", "1e18", "--vocab-size", "1000", "--context", "128"]
    _refused(capsys, ["plan", tmp_path / "law.json", *shape, "--out", table / "plan.json"], "runs.csv")
    (tmp_path / "tree").mkdir()
    _refused(capsys, ["plan", tmp_path / "law.json", *shape, "--out", tmp_path / "tree"], "tree")
    _refused(capsys, ["plan", tmp_path / "law.json", "--flops", "1e300", *shape[2:]], "1e+300")
    _refused(capsys, ["quickstart", "--out", table], "runs.csv")
    assert main(["plan", str(tmp_path / "law.json"), *shape]) == 0
    assert "--batch" in capsys.readouterr().out


def test_settings_that_would_only_show_as_nan(capsys, tiny_store, tmp_path):
    config = tmp_path / "run.toml"
    text = (
        '[model]\nvocab_size = 300\nd_model = 16\nn_layers = 1\nn_heads = 2\n{}\n[data]\nstore = "{}"\ncontext = 16\n'
    )
    for line, word in (("rope_theta = -1.0", "rope_theta"), ("norm_epsilon = 0.0", "norm_epsilon")):
        config.write_text("tokens = 1024\n" + text.format(line, tiny_store))
        _refused(capsys, ["train", config, "--out", tmp_path / "run"], word)
    config.write_text("tokens = 1024\nseed = 99999999999999999999\n" + text.format("", tiny_store))
    _refused(capsys, ["train", config, "--out", tmp_path / "run"], "seed is 99999999999999999999")
    config.write_text("tokens = 1024\nthreads = 100000\n" + text.format("", tiny_store))
    _refused(capsys, ["train", config, "--out", tmp_path / "run"], "threads is 100000")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["corpus", "build", "docs", "--out", "x", "--vocab-size", "many"], ["--vocab-size is 'many'", "not a number"]),
        (["train"], ["CONFIG and --out are missing;"]),
        (["train", "run.toml"], ["--out is missing;"]),
        (["train", "--out", "x"], ["CONFIG is missing;"]),
        (["plan", "law.json"], ["there is no budget; give one of --flops, --usd with"]),
        (["count", "palm-8b", "--context", "long"], ["--context is 'long', which is not a number;"]),
        (["plan", "law.json", "--flops", "abc"], ["--flops is 'abc', which is not a number;"]),
        (["corpus", "build", "docs", "--out", "x", "--invalid-utf8", "maybe"], ["--invalid-utf8", "maybe"]),
        (["fit", "runs.csv", "--couplings", "a"], ["--couplings is 'a', which is not a list of numbers;"]),
        (["ladder", "s", "--out", "o", "--budgets", "1e9", "b"], ["--budgets is '1e9 b', which is not a list of num"]),
        (["fit", "runs.csv", "--seed"], ["--seed", "; see `areca fit --help`."]),
    ],
)
def test_command_lines_that_cannot_be_parsed(capsys, argv, words):
    error = _refused(capsys, argv, *words)
    assert ".;" not in error
    assert "NoneType" not in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from-step", "4"], ["--from-step 4", "give --resume with it."]),
        (["--from-step", "4", "--auto-resume"], ["--from-step 4", "give --resume with it, in place of --auto-resume."]),
        (["--resume", "--auto-resume"], ["--resume and --auto-resume are both given"]),
    ],
)
def test_ways_to_resume_that_contradict_each_other(capsys, tmp_path, options, words):
    _refused(capsys, ["train", tmp_path / "run.toml", "--out", tmp_path / "run", *options], *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("ramp = [[0, 4]]", "ramp = [[5, 4]]"), ["batch.ramp is [[5, 4]];", "as in [[0, 16]]."]),
        (("ramp = [[0, 4]]", "ramp = [[0, 4, 5]]"), ["rows of 2 values such as [[0, 16]], not [0, 4, 5]"]),
        (("seed = 1", "seed = true"), ["run.toml: seed is true; it must be a whole number."]),
        (("seed = 1", "seed = 1.5"), ["run.toml: seed is 1.5; it must be a whole number."]),
        (("tokens = 1024", ""), ["run.toml: tokens is missing"]),
        (("context = 16", "context = 16\nweights = [['big', 'x']]"), ["weights is 'x'; it must be a number."]),
    ],
)
def test_settings_are_shown_as_a_user_writes_them(capsys, tiny_store, tmp_path, change, words):
    text = (
        "tokens = 1024\nseed = 1\n[model]\nvocab_size = 300\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
        f'[data]\nstore = "{tiny_store}"\ncontext = 16\n[batch]\nramp = [[0, 4]]\n'
    )
    assert change[0] in text
    (tmp_path / "run.toml").write_text(text.replace(*change))
    _refused(capsys, ["train", tmp_path / "run.toml", "--out", tmp_path / "run"], *words)


def test_what_changed_is_said_in_the_words_of_a_configuration():
    old, new = {"a": None, "b": True, "c": [[0, 4]], "d": "x"}, {"a": 3, "b": False, "c": ((0, 8),), "d": "y"}
    assert differences(old, new) == ["a: not set -> 3", "b: true -> false", "c: [[0, 4]] -> [[0, 8]]", "d: 'x' -> 'y'"]


@pytest.mark.parametrize("chips", ["0", "-4"])
def test_a_model_on_no_chips(capsys, chips):
    _refused(capsys, ["count", "palm-8b", "--chips", chips], f"chips is {chips}", "at least 1")


def test_numbers_beyond_reason_are_refused_before_they_overflow(capsys, tmp_path):
    _refused(capsys, ["count", "palm-8b", "--tokens", "1e300"], "tokens is 1e+300")
    speed = ["--tokens-per-second", "1e300", "--peak-tflops", "1e300"]
    _refused(capsys, ["count", "palm-8b", *speed], "1e+300")
    table = tmp_path / "runs.csv"
    table.write_text("n_params,n_tokens,loss\n1e3,1e5,3\n1e300,1e300,2\n")
    error = _refused(capsys, ["fit", table], "line 3", "1e300", "n_params", "between 1e-40 and 1e+40")
    assert "Warning" not in error


def test_a_shape_is_counted_from_toml_as_from_json(capsys, tmp_path):
    (tmp_path / "run.toml").write_text(
        "tokens = 1000\n[model]\nvocab_size = 300\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
        '[data]\nstore = "store"\ncontext = 32\n'
    )
    assert main(["count", str(tmp_path / "run.toml")]) == 0
    assert "T 32" in capsys.readouterr().out
    _refused(capsys, ["count", tmp_path / "missing.toml"], "missing.toml does not exist")


@pytest.fixture
def law(table, tmp_path, capsys):
    columns = ["--n-params", "n", "--n-tokens", "d", "--loss", "l"]
    assert main(["fit", str(table), *columns, "--bootstrap", "50", "--out", str(tmp_path / "law.json")]) == 0
    capsys.readouterr()
    return tmp_path / "law.json"


def test_of_two_files_to_write_none_is_written_where_one_cannot_be(capsys, law, tmp_path):
    """Seen before anything is computed, too: a fit of hours is not lost to a misspelt --out."""
    (tmp_path / "tree").mkdir()
    plan = ["plan", law, "--flops", "1e18", "--vocab-size", "1000", "--context", "128"]
    _refused(capsys, [*plan, "--config-out", tmp_path / "run.json", "--store", "s", "--out", tmp_path / "tree"], "tree")
    assert not (tmp_path / "run.json").exists()
    _refused(capsys, ["fit", tmp_path / "runs.csv", "--loss", "none", "--out", tmp_path / "tree"], "tree can't be used")
    _refused(
        capsys, ["fit", tmp_path / "runs.csv", "--out", law / "x.json"], "law.json is a file, where a directory must be"
    )


@pytest.mark.parametrize("value", ["0", "-3"])  # 0 is a mistake too, not "not given"
@pytest.mark.parametrize("option", ["vocab-size", "context", "batch"])
def test_sizes_of_a_plan_that_are_none(capsys, law, option, value):
    sizes = {"vocab-size": "1000", "context": "64", "batch": "4"} | {option: value}
    options = [word for name, number in sizes.items() for word in (f"--{name}", number)]
    for verb in (
        ["plan", law, "--flops", "1e18"],
        ["plan", law, "--target-loss", "3"],
        ["design", law, "--flops", "1e13", "--target-flops", "1e15"],
    ):
        _refused(capsys, [*verb, *options], f"--{option} is {value}; it must be at least 1.")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["count", "palm-8b", "--context", "0"], "--context is 0; it must be at least 1."),
        (["count", "palm-8b", "--n-layers", "0"], "--n-layers is 0; it must be at least 1."),
        (["count", "palm-8b", "--tokens", "0"], "tokens is 0.0; give a whole number of training tokens"),
        (["count", "palm-8b", "--tokens-per-second", "5", "--peak-tflops", "0"], "--peak-tflops is 0; it must be"),
        (
            ["count", "palm-8b", "--tokens-per-second", "0", "--peak-tflops", "9"],
            "MFU needs positive tokens per second",
        ),
        (["dryrun", "palm-8b", "--mesh", "1x1", "--batch", "1", "--context", "0"], "--context is 0; it must be"),
        (["footprint", "published:palm-540b", "--hours", "0"], "--hours is 0, but there is no table"),
    ],
)
def test_a_zero_is_a_value_and_not_an_option_left_out(capsys, argv, says):
    _refused(capsys, argv, says)


def test_a_published_law_has_no_interval_to_plan_a_probability_by(capsys):
    for argv in (
        ["plan", "--law", "chinchilla", "--target-loss", "2.5"],
        ["plan", "chinchilla", "--target-loss", "2.5", "--vocab-size", "1000", "--context", "64"],
        ["design", "kaplan", "--flops", "1e13", "--target-flops", "1e15"],
    ):
        _refused(
            capsys, argv, "is a published law, which comes without the runs", "`areca fit runs.csv --out law.json`"
        )
    _refused(capsys, ["design", "chinchila", "--flops", "1e13", "--target-flops", "1e15"], "did you mean 'chinchilla'")


def test_a_budget_of_more_tokens_than_64_bits_count(capsys, law):
    argv = ["plan", str(law), "--flops", "1e35", "--vocab-size", "1000", "--context", "64", "--json"]
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["best"]["n_tokens"] > 2**63


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fit", ""], ["PATHS is empty text"]),
        (["plan", "", "--flops", "1"], ["LAW is empty text"]),
        (["train", "null.json", "--out", "run"], ["null.json must be a table of settings, not null"]),
        (["train", "latin.json", "--out", "run"], ["latin.json is not text in UTF-8, so it is not JSON"]),
        (["train", "latin.toml", "--out", "run"], ["latin.toml is not text in UTF-8, so it is not TOML"]),
        (["train", "empty.toml", "--out", "run"], ["empty.toml: model and data and tokens are missing"]),
        (["train", "deep.json", "--out", "run"], ["deep.json is not valid JSON"]),
        (["count", "tree"], ["tree is a directory; name a .toml or .json file, as tree/run.json."]),
        (["plan", "null.json", "--flops", "1e18"], ["null.json is not a law written by `areca fit`; fit it again"]),
        (["quickstart", "--out", "q", "--seed", "-1"], ["seed is -1; it must be a whole number from 0 to 4294966"]),
        (["serve", "null.json", "--port", "80.5"], ["--port is '80.5', which is not a whole number"]),
        (["count", "palm-8b", "--context", "8.5"], ["--context is '8.5', which is not a whole number"]),
        (["train", "run.toml", "--track", "--out", "run"], ["--track is given without a value; name one or more"]),
        (["generate", "tree", "--stop"], ["--stop is given without a value; name one or more"]),
        (["track", "null.json", "--to", "tensorboard"], ["null.json is a file; name a run directory"]),
        (["generate", "nothing"], ["nothing does not exist; name a run directory"]),
        (["export", "hf", "nothing", "--out", "x"], ["nothing does not exist; name a run directory"]),
        (["generate", "null.json"], ["null.json is a file; name a run directory"]),
        (["quickstart", "--out", "null.json"], ["null.json is a file, where a directory must be"]),
    ],
)
def test_files_that_are_something_else(capsys, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "null.json").write_text("null")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "empty.toml").write_text("")
    for name in ("latin.json", "latin.toml"):
        (tmp_path / name).write_bytes(b"tokens = \xe9")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "run.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    error = _refused(capsys, argv, *words)
    assert error.count("\n") == 1
    assert "NoneType" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_is_not_made_where_a_file_is(capsys, tiny_store, tmp_path):
    (tmp_path / "run.toml").write_text(
        "tokens = 1024\n[model]\nvocab_size = 300\nd_model = 16\nn_layers = 1\nn_heads = 2\n"
        f'[data]\nstore = "{tiny_store}"\ncontext = 16\n'
    )
    _refused(capsys, ["train", tmp_path / "run.toml", "--out", tmp_path / "run.toml"], "run.toml is a file; name a dir")


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--sample", "-1"], "--sample is -1"), (["--mixture", "-1"], "--mixture is -1")],
)
def test_a_look_at_less_than_nothing(capsys, tiny_store, options, words):
    _refused(capsys, ["corpus", "show", tiny_store, *options], words)


def test_more_samples_than_documents_are_all_documents(capsys, tiny_store):
    assert main(["corpus", "show", str(tiny_store), "--sample", "99999999999999", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    heldout = sum(c["heldout_documents"] for c in shown["corpora"])
    assert len(shown["samples"]) == heldout > 0


def test_a_vocabulary_of_none_is_not_the_default(capsys, tmp_path):
    (tmp_path / "a.txt").write_text("some text\n\n" * 900)
    _refused(capsys, ["corpus", "build", tmp_path / "a.txt", "--out", tmp_path / "o", "--vocab-size", "0"], "257")


def test_pieces_larger_than_memory_are_no_trouble(capsys, tmp_path):
    for i in range(9):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / f"{i}.txt").write_text(f"text number {i} with words of its own {i * i}\n" * 9)
    build = ["corpus", "build", str(tmp_path / "t"), "--out", str(tmp_path / "o"), "--vocab-size", "300", "--json"]
    assert main([*build, "--no-near-duplicates", "--split-documents", str(10**14)]) == 0
    assert json.loads(capsys.readouterr().out)["corpora"][0]["read"]["documents"] == 9
