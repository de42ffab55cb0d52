"""Energy of a training run: metered where there is a sensor, estimated with the reason where there is none."""

import signal

import pytest

from areca.cli.main import main
from areca.errors import ConfigError, Interrupted
from areca.files import read_json, read_jsonl
from areca.footprint import meter as meters
from areca.footprint import sessions
from areca.footprint.rapl import find_rapl
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_metrics
from areca.train.together import Member, train_together
from footprint.fakes import domain
from tiny import tiny_config


@pytest.fixture
def heater(tmp_path, monkeypatch):
    """A machine whose one package draws 50 W, with this process alone on it."""
    file = domain(tmp_path / "powercap", "intel-rapl:0", "package-0", 0)
    [package], _ = find_rapl(tmp_path / "powercap")

    class Package:
        name, place, counts, wraps_at = package.name, "cpu", True, package.wraps_at

        def read(self):
            import time

            file.write_text(str(int(50e6 * time.monotonic())))
            return package.read()

    monkeypatch.setattr(sessions, "find_rapl", lambda: ([Package()], []))
    monkeypatch.setattr(meters, "machine_cpu_seconds", lambda: meters.time.process_time())


def test_a_machine_without_sensors_gives_an_estimate_with_the_reason(tiny_store, tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "find_rapl", lambda: find_rapl(tmp_path / "nothing"))
    energy = train(tiny_config(tiny_store), tmp_path / "run")["energy_kwh"]
    assert energy["kind"] in ("estimated (TDP)", "assumed")
    assert energy["measured_share"] == 0
    assert energy["gaps"] == [f"this system shows no RAPL counters ({tmp_path / 'nothing'} is not there)"]
    assert energy["value"] == pytest.approx(energy["watts"] * energy["seconds"] / 3.6e6)
    assert {row["watts"] for row in read_metrics(tmp_path / "run")} == {None}


def test_a_sensor_measures_and_changes_no_bit(tiny_run, tiny_store, tmp_path, heater):
    result = train(tiny_config(tiny_store), tmp_path / "run")
    energy = result["energy_kwh"]
    assert (energy["kind"], energy["measured_share"]) == ("measured", 1.0)
    assert energy["watts"] == pytest.approx(50, rel=0.01)
    assert energy["value"] == pytest.approx(50 * energy["seconds"] / 3.6e6, rel=0.01)
    assert energy["seconds"] > result["seconds"]  # compilation and evaluation are in it
    assert energy["training_share"] < 1
    assert "package-0" in energy["source"]
    read = result["evaluation"]  # 512 held-out tokens, in a part of the run's time
    assert read["tokens"] == result["heldout_tokens"]
    assert read["kwh_per_1000_tokens"]["kind"] == "measured"
    assert 0 < read["kwh_per_1000_tokens"]["value"] * read["tokens"] / 1000 < energy["value"]
    grams = read["gco2e_per_1000_tokens"]["value"]
    grid = result["carbon_kg"]["grid"]["kg_per_kwh"]
    assert grams == pytest.approx(1000 * grid * read["kwh_per_1000_tokens"]["value"])
    assert metrics_without_timing(tmp_path / "run") == metrics_without_timing(tiny_run)
    assert result["parameters_sha256"] == read_json(tiny_run / "result.json")["parameters_sha256"]


def test_a_resumed_run_sums_its_sessions(tiny_store, tmp_path, heater):
    def listen(progress):
        if progress.step == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        train(tiny_config(tiny_store), tmp_path / "run", listener=listen)
    first = [e["energy"] for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "save"][-1]
    energy = train(tiny_config(tiny_store), tmp_path / "run", resume="must")["energy_kwh"]
    assert energy["sessions"] == 2
    assert energy["seconds"] > first["seconds"]
    assert energy["value"] == pytest.approx(50 * energy["seconds"] / 3.6e6, rel=0.01)
    assert energy["gaps"] == []


def test_runs_of_one_program_share_its_energy(tiny_store, tmp_path, heater):
    from dataclasses import replace

    from areca.config import GuardConfig

    config = replace(tiny_config(tiny_store), guard=GuardConfig(enabled=False))
    runs = [Member(replace(config, seed=s), tmp_path / f"run-{s}", {}) for s in range(2)]
    a, b = (r["energy_kwh"] for r in train_together(runs))
    assert a["watts"] == pytest.approx(50, rel=0.01)  # of its share of the seconds
    assert a["value"] == pytest.approx(50 * a["seconds"] / 3.6e6, rel=0.01)
    assert (a["kind"], b["kind"]) == ("measured", "measured")


def test_where_a_run_is_comes_from_the_environment_and_is_checked_first(tiny_store, tmp_path, monkeypatch):
    monkeypatch.setenv("ARECA_REGION", "iowa")
    monkeypatch.setenv("ARECA_PUE", "1.11")
    result = train(tiny_config(tiny_store), tmp_path / "run")
    kwh = result["energy_kwh"]["value"]
    assert result["energy_kwh"]["pue"] == 1.11
    assert kwh == pytest.approx(1.11 * result["energy_kwh"]["watts"] * result["energy_kwh"]["seconds"] / 3.6e6)
    assert result["carbon_kg"]["value"] == pytest.approx(0.478 * kwh)
    assert result["carbon_net_kg"]["value"] == pytest.approx(0.080 * kwh)
    monkeypatch.setenv("ARECA_REGION", "iowaa")
    with pytest.raises(ConfigError, match=r"ARECA_REGION: there is no region 'iowaa' \(did you mean 'iowa'\?\)"):
        train(tiny_config(tiny_store), tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert main(["footprint", str(tmp_path / "run")]) == 0  # what was recorded does not ask where this machine is
