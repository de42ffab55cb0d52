"""The page and report.json against the law that the synthetic quickstart was drawn from."""

import json
import re
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise

import pytest
from synthetic_quickstart import BUDGETS, NOISE, SAMPLES, best_size, loss, write_quickstart, write_run

from areca.cli.main import main
from areca.errors import ConfigError, DataError
from areca.files import sha256_file
from areca.report import build_report
from areca.report.curves import internals
from areca.report.rundirs import Run


@pytest.fixture(scope="module")
def built(finished, tmp_path_factory):
    """(summary, directory) of the finished quickstart's report."""
    out = tmp_path_factory.mktemp("report")
    return build_report([finished], out), out


class Elements(HTMLParser):
    """All elements of a page with their attributes, and its text outside scripts and styles."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.hidden = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.hidden = self.hidden or tag in ("script", "style")

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.hidden = False

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)


def page(out):
    return (out / "report.html").read_text(encoding="utf-8")


def figures(out):
    return json.loads(re.search(r'id="figures">(.*?)</script>', page(out), re.DOTALL)[1])


def test_json_has_prediction_interval_and_achieved_loss_by_name(built, finished):
    summary, out = built
    n, d = json.loads((finished / "plan.json").read_text())["n_params"], summary["n_tokens"]
    truth = float(loss(n, d))
    written = json.loads((out / "report.json").read_text())
    assert written["predicted_loss"] == pytest.approx(truth)
    assert written["predicted_interval_90"] == pytest.approx([truth * 0.985, truth * 1.015])
    assert written["achieved_loss"] == pytest.approx(truth * 0.9956)
    assert written["relative_error"] == pytest.approx(1 / 0.9956 - 1)
    assert written["half_width_relative"] == pytest.approx(0.015)
    assert written["covered"] is True
    baseline = written["naive_baseline_loss"]
    assert written["error_share_of_drop"] == pytest.approx(truth * 0.0044 / (baseline - truth * 0.9956))
    assert len(written["runs"]) == 16
    assert written["law"]["parameters"]["alpha"] == {"value": 0.33, "interval_90": [0.31, 0.35]}
    assert written["energy_kwh"]["kind"] == "estimated (TDP)"
    assert written["seconds"] == pytest.approx(594.0)
    assert written["missing"] == []


def test_a_miss_is_said_as_a_miss(tmp_path):
    root = write_quickstart(tmp_path / "missed", miss=True)
    summary = build_report([root], root)
    assert summary["covered"] is False
    assert summary["relative_error"] == pytest.approx(1 / 1.06 - 1)
    assert "The prediction missed:" in page(root)
    assert "lies inside the 90% interval" not in page(root)


def test_time_of_which_a_part_is_not_known_is_said_to_be_the_least(tmp_path):
    root = write_quickstart(tmp_path / "killed")
    record = json.loads((root / "quickstart.json").read_text())
    record["stages"][1]["at_least"] = True
    (root / "quickstart.json").write_text(json.dumps(record))
    summary = build_report([root], root)
    assert summary["seconds"] == pytest.approx(594.0)
    assert summary["seconds_at_least"] is True
    words = " ".join(Elements(page(root)).words)
    assert words.count("at least ") == 3  # the sum twice, and the one stage
    assert "at least 9 min 54 s" in words
    record["stages"][1].pop("at_least")
    (root / "quickstart.json").write_text(json.dumps(record))
    assert build_report([root], root)["seconds_at_least"] is False
    assert "at least 9 min" not in page(root)


def test_page_loads_nothing(built):
    elements = Elements(page(built[1])).found
    for tag, attributes in elements:
        assert tag not in ("iframe", "object", "embed", "base", "img", "video", "audio")
        for name in ("src", "href", "action", "data", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:,")), (tag, attributes)
    style = re.search(r"<style>(.*?)</style>", page(built[1]), re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(a["content"] for t, a in elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_page_stays_small(built):
    assert (built[1] / "report.html").stat().st_size < 1_500_000


def test_text_of_users_is_shown_not_run(built):
    shown = Elements(page(built[1]))
    assert SAMPLES[1]["text"] in "".join(shown.words)
    assert sum(tag == "script" for tag, _ in shown.found) == 3


def test_run_name_with_markup_is_escaped(tmp_path, finished):
    import numpy as np

    name = "<img src=x onerror=alert(1)>"
    write_run(tmp_path / name, 1e4, 1e5, 5.0, np.random.default_rng(0), steps=20)
    build_report([tmp_path / name], tmp_path / "out")
    assert not [t for t, _ in Elements(page(tmp_path / "out")).found if t == "img"]
    assert "<img" not in json.dumps(figures(tmp_path / "out"))


def test_inlined_data_cannot_end_its_script(built):
    assert "<" not in re.search(r'id="figures">(.*?)</script>', page(built[1]), re.DOTALL)[1]
    plotly = resources.files("areca.report").joinpath("assets/plotly-basic.min.js").read_text(encoding="utf-8")
    assert "</script" not in plotly.lower()
    assert plotly in page(built[1])


def test_plotly_bundle_is_the_one_noted():
    noted = resources.files("areca.report").joinpath("assets/plotly-basic.txt").read_text(encoding="utf-8")
    with resources.as_file(resources.files("areca.report").joinpath("assets/plotly-basic.min.js")) as bundle:
        assert f"sha256: {sha256_file(bundle)}" in noted
        version = re.search(r"version: (\S+)", noted)[1]
        assert f"plotly.js (basic - minified) v{version}" in bundle.read_text(encoding="utf-8")[:200]


def test_every_quickstart_section_has_its_plot(built):
    names = {"plot-law", "plot-fit", "plot-observed", "plot-valleys", "plot-optima", "plot-plan"}
    names |= {f"plot-residuals-{of}" for of in ("n", "d", "c", "fitted")} | {"plot-quantiles"}
    names |= {"plot-training", "plot-internals"}
    assert set(figures(built[1])) == names
    for figure in figures(built[1]).values():
        for axis in ("xaxis", "yaxis"):
            assert figure["layout"][axis]["title"]["text"]


def test_a_runs_inside_is_drawn_from_rate_to_mfu(tmp_path):
    steps = range(1, 6)
    metrics = {"tokens": [64.0 * i for i in steps], "learning_rate": [0.01 * i for i in steps]}
    metrics |= {"batch": [4.0] * 2 + [8.0] * 3, "grad_norm": [1.0 / i for i in steps]}
    metrics |= {name: [None] * 5 for name in ("update_norm", "param_norm", "mfu")}
    drawn = internals([Run("one", tmp_path, None, None, metrics, [])])
    assert drawn is not None
    titles = {drawn["layout"][axis]["title"]["text"]: axis for axis in drawn["layout"] if axis.startswith("yaxis")}
    assert list(titles) == ["learning rate", "batch, sequences", "gradient norm"]  # what was recorded, in this order
    by_axis = {t["yaxis"].replace("y", "yaxis"): t["y"] for t in drawn["data"]}
    assert by_axis[titles["batch, sequences"]] == [4, 4, 8, 8, 8]
    assert drawn["layout"]["xaxis"]["anchor"] == "y3"
    domains = [drawn["layout"][axis]["domain"] for axis in titles.values()]
    assert all(lower[1] < upper[0] for upper, lower in pairwise(domains))


def test_valleys_are_lowest_at_the_laws_own_best_sizes(built):
    stars = [t for t in figures(built[1])["plot-valleys"]["data"] if t.get("name") == "optimum"]
    assert [s["x"][0] for s in stars] == pytest.approx([best_size(c) for c in BUDGETS], rel=0.1)


def test_residuals_are_the_noise_that_was_put_in(built):
    data = figures(built[1])["plot-residuals-n"]["data"]
    fitted = [y for trace in data if trace["name"] != "verifying run" for y in trace["y"]]
    assert len(fitted) == 15
    assert max(map(abs, fitted)) < 100 * 4 * NOISE
    verifying = next(t for t in data if t["name"] == "verifying run")
    assert verifying["y"] == pytest.approx([-0.44], abs=0.001)


def test_band_holds_the_law(built):
    data = figures(built[1])["plot-law"]["data"]
    low, high = data[0]["y"], data[1]["y"]
    law = next(t for t in data if t.get("name") == "law at best N and D")["y"]
    assert all(a < b < c for a, b, c in zip(low, law, high, strict=True))


def test_static_pictures_are_written_and_repeat_to_the_byte(finished, tmp_path):
    names = [f"{stem}{suffix}" for stem in ("valleys", "law", "overview", "training") for suffix in (".svg", ".png")]
    build_report([finished], tmp_path / "a", figures=True)
    build_report([finished], tmp_path / "b", figures=True)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "law.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a" / "law.svg").read_text()


def test_verb_writes_and_prints_json(finished, tmp_path, capsys):
    assert main(["report", str(finished), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "out" / "report.json").read_text())


def test_verb_says_a_mistake_in_one_sentence(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"areca report: {tmp_path / 'nowhere'} does not exist; give a law.json, a plan.json, or the directory of a "
        "quickstart, a ladder or a run.\n"
    )


def test_out_that_is_a_file_is_refused(finished, tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigError, match="is a file; name a directory"):
        build_report([finished], tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


def test_damaged_file_is_named_and_nothing_is_written(quickstart, tmp_path):
    (quickstart / "plan.json").write_text('{"predicted_loss": 3.')
    with pytest.raises(DataError, match=r"plan\.json is not valid JSON"):
        build_report([quickstart], tmp_path / "out")
    assert not (tmp_path / "out").exists()
