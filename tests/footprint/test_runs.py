"""Runs of a study summed, failed ones included, and what `areca footprint` prints of them."""

import json
import shutil

import pytest

from areca.cli.main import main
from areca.errors import DataError
from areca.files import read_json, write_json
from areca.footprint.cases import published_names
from areca.footprint.planned import embodied, footprint_of, in_words, per_1000_tokens
from areca.footprint.regions import grid_of
from areca.footprint.runs import runs_under, total

POWER = {"cpu": {"watts": 36.0, "kind": "assumed", "source": "as a test says"}}


def _reading(seconds):
    return {"seconds": seconds, "sensors": [], "cpu_seconds": 1.0, "machine_cpu_seconds": None, "missing": []}


def _lines(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def _unfinished(path, events, rows):
    path.mkdir(parents=True)
    topology = {"backend": "cpu", "device_kind": "cpu", "threads": 2, "processor": "AMD EPYC 7763 64-Core Processor"}
    write_json(path / "run.json", {"topology": topology, "counts": {"exact_flops_per_token": 100}, "config": {}})
    _lines(path / "events.jsonl", events)
    _lines(path / "metrics.jsonl", rows)
    return path


def _finished(path, kwh, grid=None, pue=1.0):
    from areca.footprint import DEFAULT_GRID, tagged

    path.mkdir(parents=True)
    found = tagged(
        kwh, kind="measured", watts=1.0, source="a meter", pue=pue, grid=grid or DEFAULT_GRID, seconds=3600.0
    )
    write_json(path / "result.json", {**found, "seconds": 3000.0, "flops_exact": 1e12, "mfu": 0.3})
    return path


def _steps(n):
    return [{"step": i + 1, "tokens": 10 * (i + 1), "seconds": 50.0} for i in range(n)]


def test_killed_and_diverged_runs_are_counted(tmp_path):
    study = tmp_path / "study"
    _finished(study / "ladder" / "runs" / "a", 1.0)
    # Saved at step 4 after 300 s, killed at step 10: six steps of 50 s come on top.
    start, save = {"event": "start", "power": POWER}, {"event": "save", "step": 4, "energy": _reading(300.0)}
    _unfinished(study / "ladder" / "runs" / "b", [start, save], _steps(10))
    lost = {"event": "not_finite", "step": 2, "energy": _reading(200.0)}
    _unfinished(study / "verify", [start, lost], _steps(2))
    (study / "ladder" / "runs" / "b" / "checkpoints" / "4").mkdir(parents=True)
    (study / "ladder" / "runs" / "b" / "checkpoints" / "4" / "run.json").write_text("{}")  # no run of its own
    found = {r.name: r for r in runs_under(study)}
    assert {n: r.ended for n, r in found.items()} == {
        "ladder/runs/a": "finished",
        "ladder/runs/b": "killed",
        "verify": "diverged",
    }
    b = found["ladder/runs/b"].footprint["energy_kwh"]
    assert b["value"] == pytest.approx(36 * (300 + 6 * 50) / 3.6e6)
    assert b["kind"] == "assumed"
    assert any("killed" in g for g in b["gaps"])
    assert found["ladder/runs/b"].flops == 100 * 100
    assert found["verify"].footprint["energy_kwh"]["value"] == pytest.approx(36 * 200 / 3.6e6)
    summed = total(list(found.values()))
    assert summed["energy_kwh"]["value"] == pytest.approx(1.0 + 36 * 800 / 3.6e6)
    assert summed["energy_kwh"]["kind"] == "assumed"  # no more certain than its parts
    assert summed["ended"] == {"finished": 1, "killed": 1, "diverged": 1}


def test_a_run_from_before_there_was_a_meter_is_counted_by_its_steps(tmp_path):
    path = _unfinished(tmp_path / "old", [{"event": "start"}, {"event": "rewind", "seconds": 100.0}], _steps(4))
    [run] = runs_under(path)
    # 280 W over 64 cores (EPYC 7763, its data sheet), two threads, 4 x 50 s and 100 s that a rewind threw away.
    assert run.footprint["energy_kwh"]["value"] == pytest.approx(2 * 280 / 64 * 300 / 3.6e6)
    assert run.footprint["energy_kwh"]["kind"] == "estimated (TDP)"


def test_a_run_that_took_no_step_is_there_with_what_it_used(tmp_path):
    path = _unfinished(tmp_path / "new", [{"event": "start", "power": POWER}], [])
    [run] = runs_under(path)
    assert (run.ended, run.footprint["energy_kwh"]["value"]) == ("killed", 0.0)
    assert "not a step is recorded" in run.footprint["energy_kwh"]["gaps"]


def test_a_run_on_what_it_did_not_record_is_unknown_and_not_zero(tmp_path):
    path = tmp_path / "odd"
    path.mkdir()
    _lines(path / "metrics.jsonl", _steps(4))
    [run] = runs_under(path)
    assert run.footprint["energy_kwh"]["value"] is None
    known = _finished(tmp_path / "known", 1.0)
    summed = total([run, *runs_under(known)])
    assert (summed["energy_kwh"]["value"], summed["energy_kwh"]["runs_unknown"]) == (1.0, 1)


def test_region_and_pue_move_a_run_without_changing_what_it_drew(tmp_path):
    path = _finished(tmp_path / "run", 2.0, pue=2.0)
    [run] = runs_under(path, grid_of("iowa"), 1.1)
    assert run.footprint["energy_kwh"]["value"] == pytest.approx(1.1)  # PUE replaced, not multiplied
    assert run.footprint["carbon_kg"]["value"] == pytest.approx(1.1 * 0.478)
    assert run.footprint["carbon_net_kg"]["value"] == pytest.approx(1.1 * 0.080)
    assert run.footprint["energy_kwh"]["kind"] == "measured"


def test_what_has_not_run_has_an_estimate():
    # 24 h on 8 H100s at their TDP of 700 W, PUE 1.1, in Google's Iowa.
    found = footprint_of(86400, 8, "h100", region="iowa", pue=1.1)
    assert found["energy_kwh"]["value"] == pytest.approx(24 * 8 * 0.7 * 1.1)
    assert found["energy_kwh"]["kind"] == "estimated (TDP)"
    assert found["carbon_kg"]["value"] == pytest.approx(24 * 8 * 0.7 * 1.1 * 0.478)
    assert found["carbon_net_kg"]["value"] == pytest.approx(24 * 8 * 0.7 * 1.1 * 0.080)
    given = footprint_of(3600, 2, "mine", watts=500)
    assert (given["energy_kwh"]["value"], given["energy_kwh"]["kind"]) == (1.0, "assumed")


def test_tokens_and_embodied_carbon():
    found = per_1000_tokens(footprint_of(3600, 1, "x", watts=500), 250_000)
    assert found["kwh_per_1000_tokens"]["value"] == pytest.approx(0.002)
    assert found["gco2e_per_1000_tokens"]["value"] == pytest.approx(0.002 * 429)
    assert "per 1,000 tokens" in in_words(found)
    # 150 kg over 5 years at 60%: 8,766 x 5 x 0.6 = 26,298 hours of use.
    assert embodied("150,5,0.6", 26298)["value"] == pytest.approx(150)
    assert embodied("150,5,0.6", 1.0)["kind"] == "assumed"


def test_a_real_run_its_copy_that_was_killed_and_their_sum(tiny_run, tmp_path, capsys):
    shutil.copytree(tiny_run, tmp_path / "study" / "whole")
    shutil.copytree(tiny_run, tmp_path / "study" / "killed")
    (tmp_path / "study" / "killed" / "result.json").unlink()
    events = (tmp_path / "study" / "killed" / "events.jsonl").read_text().splitlines()
    kept = [line for line in events if json.loads(line)["event"] not in ("evaluate", "finish")]
    (tmp_path / "study" / "killed" / "events.jsonl").write_text("\n".join(kept) + "\n")
    assert main(["footprint", str(tmp_path / "study"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = read_json(tiny_run / "result.json")
    assert found["ended"] == {"killed": 1, "finished": 1}
    killed, finished = (r["energy_kwh"]["value"] for r in found["runs"])
    assert finished == whole["energy_kwh"]["value"]
    assert 0 < killed < finished
    assert found["footprint"]["energy_kwh"]["value"] == pytest.approx(killed + finished)
    assert main(["footprint", str(tmp_path / "study")]) == 0
    assert "2 runs: 1 killed, 1 finished" in capsys.readouterr().out


def test_a_run_with_levers_window_card_and_plot(tiny_run, tmp_path, capsys):
    table = tmp_path / "grid.csv"
    rows = [f"here,{h},{100 if h in (2, 3) else 300}" for h in range(24)]
    table.write_text("region,hour,g_per_kwh\n" + "\n".join(rows) + "\n")
    command = ["footprint", str(tiny_run), "--region", "iowa", "--pue", "1.1"]
    more = ["--what-if", "region=taiwan,pue=1.5", "--intensity", str(table), "--hours", "2", "--embodied", "100,5,0.5"]
    assert main([*command, *more, "--plot", str(tmp_path / "x.svg"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kwh = read_json(tiny_run / "result.json")["energy_kwh"]["value"] * 1.1
    assert found["footprint"]["energy_kwh"]["value"] == pytest.approx(kwh)
    assert found["footprint"]["carbon_net_kg"]["value"] == pytest.approx(kwh * 0.080)
    assert found["what_if"]["after"]["carbon_kg"]["value"] == pytest.approx(kwh / 1.1 * 1.5 * 0.545)
    assert found["when"]["best"]["start"] == "02:00"
    assert found["when"]["best"]["carbon_kg"] == pytest.approx(kwh * 0.1)
    assert found["embodied_kg"]["kind"] == "assumed"
    assert (tmp_path / "x.svg").exists()
    assert main([*command, *more]) == 0
    printed = capsys.readouterr().out
    assert "cheapest: here from 02:00 for 2 h at 0.1 kg/kWh" in printed
    assert main([*command, *more, "--card"]) == 0
    card = capsys.readouterr().out
    for field in (
        "Hardware type",
        "Hours used",
        "Provider and region",
        "PUE",
        "Energy",
        "Carbon emitted, gross",
        "net",
    ):
        assert field in card
    assert "Embodied carbon, not in the above" in card
    assert read_json(tiny_run / "result.json")["energy_kwh"]["kind"] in card


def test_another_machine_is_compared_with_the_speed_of_training_not_with_compilation(tmp_path):
    path = _finished(tmp_path / "run", 1.0)
    result = read_json(path / "result.json")
    result["energy_kwh"]["training_share"] = 0.25
    write_json(path / "result.json", result)
    [run] = runs_under(path)
    assert run.case().flops_per_chip == pytest.approx(1e12 / 900)  # a quarter of the hour


def test_a_plan_has_a_footprint(tmp_path, capsys):
    plan = {"best": {"flops_exact": 1e18}, "cost": {"seconds": 7200.0, **footprint_of(7200, 1, "x", watts=500)}}
    write_json(tmp_path / "plan.json", plan)
    assert (
        main(["footprint", str(tmp_path / "plan.json"), "--what-if", "region=iowa,tflops=277.8,watts=250", "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["footprint"]["energy_kwh"]["value"] == 1.0
    assert found["run"]["hours"] == 2
    # 1e18 FLOPs in 7200 s are 138.9 TFLOP/s: twice the speed at half the watts.
    assert found["what_if"]["energy_factor"] == pytest.approx(4, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["published:palm"], "did you mean 'palm-540b'?"),
        (["published:palm-540b", "--region", "atlantis"], "there is no region 'atlantis'"),
        (["published:palm-540b", "--what-if", "region=iowaa"], "there is no region 'iowaa' (did you mean 'iowa'?)"),
        (["published:palm-540b", "--pue", "0.9"], "--pue is 0.9"),
        (["published:palm-540b", "--pue", "-1"], "--pue is -1"),
        (["published:palm-540b", "--what-if", "chip=tpuv9"], "there is no chip 'tpuv9'"),
        (["published:palm-540b", "--plot", "x.svg"], "give --what-if"),
        (["published:palm-540b", "--what-if", "pue=1.1", "--plot", "x.pdf"], "name an .svg or a .png file"),
        (["published:palm-540b", "--embodied", "150"], "--embodied is '150'"),
        (["published:palm-540b", "--embodied", "150,5,60"], "utilisation above 0 and at most 1"),
        (["published:palm-540b", "--hours", "5"], "give --intensity"),
        (["published:palm-540b", "--intensity", "none.csv"], "none.csv does not exist"),
        (["nowhere"], "nowhere does not exist"),
        ([], "TARGET is missing"),
        (["published:palm-540b", "--whatif", "pue=1"], "did you mean '--what-if'?"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert main(["footprint", *arguments]) == 2
    streams = capsys.readouterr()
    assert says in streams.err
    assert streams.err.count("\n") == 1
    assert streams.out == ""
    assert list(tmp_path.iterdir()) == []


RUN = '{"n_params": 1, "flops_exact": 6e15, "loss": 2.0}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"best": {"flops_exact": 6e15}, "cost": null}', "a plan that names no chip"),
        ('{"best": {"flops_exact": 6e15}, "cost": null}', "plan again with --chip, such as --chip h100"),
        ('{"best": {"flops_exact": 6e15}}', "plan again with --chip, such as --chip h100"),
        (
            '{"target_loss": 2.5, "sure": {"best": {"flops_exact": 6e15}, "cost": null}}',
            "plan the same run with --flops 6e+15 and --chip",
        ),
        ('{"parametric": {}, "isoflop": null}', "is a law (`areca fit`) and holds no energy"),
        ('{"parametric": null, "forms": []}', "is a law (`areca fit`) and holds no energy"),
        ('{"proposed": {}, "predicted_loss": 2.0}', "is a design of further runs (`areca design`) and holds no energy"),
        ('{"config": {}, "fingerprint": "x"}', "is the record of a run (run.json) and holds no energy"),
        (RUN, "is the result of a run (`areca train`) and holds no energy"),
        ("{}", "is an empty JSON object and holds no energy"),
        ('{"a": 1, "b": 2}', "is a JSON object with a, b and holds no energy"),
        ("[1]", "is a JSON list and holds no energy"),
        ("null", "is a JSON null and holds no energy"),
    ],
)
def test_a_file_that_holds_no_footprint_is_named_with_what_it_is_and_what_is_needed(tmp_path, capsys, content, says):
    path = tmp_path / "file.json"
    path.write_text(content)
    assert main(["footprint", str(path)]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.startswith(f"areca footprint: {path} is ")
    assert "--chip" in said
    assert said.count("\n") == 1


def test_places_that_hold_no_footprint_are_said(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("")
    (tmp_path / "dir").mkdir()
    for name, says in (("text.txt", "is a file of another kind; name a run"), ("dir", "holds no run")):
        assert main(["footprint", str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(DataError, match="does not exist"):
        runs_under(tmp_path / "gone")


def test_the_card_says_how_hours_and_chip_hours_go_together(tmp_path, capsys):
    """PaLM's are printed as 6144 chips for 1200 hours and 3072 chips for 336 hours, 8,404,992 chip-hours."""

    def hours(target):
        assert main(["footprint", str(target), "--card"]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "Hours used" in line)

    assert hours("published:palm-540b").endswith(
        " 1,536 h of wall clock: 6,144 chips for 1,200 h and 3,072 chips for 336 h; 8,404,992 chip-hours in all"
    )
    assert hours("published:t5-11b").endswith(" 480 h of wall clock on 512 chips (245,760 chip-hours)")
    plan = {"best": {"flops_exact": 1e18}, "cost": {"chip": "h100", "chips": 8, "hours": 2.5, "chip_hours": 20.0}}
    plan["cost"] |= footprint_of(9000, 8, "h100")
    del plan["cost"]["energy_kwh"]["seconds"]  # a plan's has none
    write_json(tmp_path / "plan.json", plan)
    assert hours(tmp_path / "plan.json").endswith(" 2.5 h of wall clock on 8 chips (20 chip-hours)")
    plan["cost"] |= {"chips": None, "hours": None}
    write_json(tmp_path / "plan.json", {"target_loss": 2.5, "sure": plan})
    assert hours(tmp_path / "plan.json").endswith(" 20 chip-hours; how many chips share them is not said")
    for name in "ab":
        _finished(tmp_path / "study" / name, 1.0)
    assert "added up over the runs" in hours(tmp_path / "study")


@pytest.mark.parametrize("target", [f"published:{name}" for name in published_names()])
def test_what_is_not_known_has_no_tag_of_how_it_is_known(target, capsys):
    for options in ([], ["--card"], ["--json"]):
        assert main(["footprint", target, *options]) == 0
        said = capsys.readouterr().out
        if options == ["--json"]:
            figures = json.loads(said)["footprint"].values()
            assert all(f["kind"].startswith("unknown") == (f["value"] is None) for f in figures)
        else:
            lines = [line for line in said.splitlines() if "not known" in line]
            assert not any(kind in line for line in lines for kind in ("measured", "estimated", "assumed"))
            assert len(lines) == (target == "published:palm-540b")


def test_runs_in_several_places_have_a_sum_and_no_levers_in_common(tmp_path, capsys):
    _finished(tmp_path / "a", 1.0)
    _finished(tmp_path / "b", 2.0, grid_of("iowa"), 1.1)
    assert main(["footprint", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "3 kWh, measured; in several places" in printed
    for more in (["--what-if", "pue=1.1"], ["--card"]):
        assert main(["footprint", str(tmp_path), *more]) == 2
        assert "give --region and --pue" in capsys.readouterr().err
    assert main(["footprint", str(tmp_path), "--region", "iowa", "--pue", "1.1", "--card"]) == 0
    assert "2 runs (2 finished)" in capsys.readouterr().out


def test_one_run_is_not_counted_as_several(tmp_path, capsys):
    _finished(tmp_path / "runs" / "a", 1.0)
    assert main(["footprint", str(tmp_path / "runs")]) == 0
    assert "\n1 run: 1 finished" in capsys.readouterr().out
    assert main(["footprint", str(tmp_path / "runs"), "--card"]) == 0
    assert "1 run (1 finished)" in capsys.readouterr().out
