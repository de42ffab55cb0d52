"""Sensors, their integration over time, and what is said where they are silent."""

import os
import threading
from pathlib import Path

import pytest

from areca.footprint import sessions
from areca.footprint.energy import GridIntensity
from areca.footprint.meter import Meter, machine_cpu_seconds
from areca.footprint.nvml import find_nvml
from areca.footprint.rapl import find_rapl
from areca.footprint.regions import Location
from footprint.fakes import Clock, FakeNvml, domain

NOWHERE = Location()
POWER = {"cpu": {"watts": 20.0, "kind": "assumed", "source": "10 W a core assumed"}}


def _meter(sensors, clock, missing=(), busy=None):
    return Meter(sensors, missing, period=0, clock=clock, busy=busy or (lambda: None))


def _footprint(reading, power=POWER, place=NOWHERE, **more):
    return sessions.footprint([{"power": power, "reading": reading, "ended": True}], place, **more)


class Lamp:
    """A sensor of watts."""

    name, place, counts, wraps_at = "lamp", "chips", False, None

    def __init__(self, watts):
        self.watts = watts

    def read(self):
        if self.watts is None:
            raise OSError("gone")
        return self.watts


def test_two_packages_and_memory_are_summed_and_their_subdomains_are_not(tmp_path):
    files = [
        domain(tmp_path, "intel-rapl:0", "package-0", 5_000_000),
        domain(tmp_path, "intel-rapl:0:0", "core", 1_000_000),
        domain(tmp_path, "intel-rapl:0:1", "dram", 2_000_000),
        domain(tmp_path, "intel-rapl:1", "package-1", 90_000_000),
        domain(tmp_path, "intel-rapl:2", "psys", 7_000_000),
        domain(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000),
    ]
    (tmp_path / "intel-rapl").mkdir()
    found, missing = find_rapl(tmp_path)
    assert [d.name for d in found] == ["package-0", "package-1", "dram of package-0"]
    assert missing == []
    clock = Clock()
    meter = _meter(found, clock)
    for file in files:
        file.write_text(str(int(file.read_text()) + 360_000_000))  # 360 J each
    clock.now += 10
    reading = meter.reading()
    assert [s["joules"] for s in reading["sensors"]] == pytest.approx([360, 360, 360])
    assert meter.watts == pytest.approx(108)
    energy = _footprint(reading, place=Location(GridIntensity(0.5, "here"), 1.5, "given"))["energy_kwh"]
    assert energy["value"] == pytest.approx(3 * 360 / 3.6e6 * 1.5)  # PUE once
    assert energy["watts"] == pytest.approx(108)
    assert (energy["kind"], energy["measured_share"]) == ("measured", 1.0)
    assert "package-0, package-1, dram of package-0" in energy["source"]
    assert "whole packages of the machine" in energy["source"]


def test_a_counter_that_wraps_goes_on(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", 262_000_000_000)
    clock = Clock()
    meter = _meter(find_rapl(tmp_path)[0], clock)
    file.write_text("100000000")
    clock.now += 1
    [sensor] = meter.reading()["sensors"]
    assert sensor["joules"] == pytest.approx(100 + 262_143.328850 - 262_000)
    assert sensor["covered_seconds"] == 1


def test_time_in_which_a_counter_may_have_wrapped_twice_is_a_gap(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0, wraps_at=65_532_610_987)
    clock = Clock()
    meter = _meter(find_rapl(tmp_path)[0], clock)
    file.write_text("1000000")
    clock.now += 3600  # a process that was stopped for an hour
    reading = meter.reading()
    assert reading["sensors"][0]["joules"] == 0
    energy = _footprint(reading)["energy_kwh"]
    assert energy["kind"] == "assumed"
    assert energy["value"] == pytest.approx(0.020)  # 20 W for an hour, not 0
    assert any("covered 0%" in g for g in energy["gaps"])


def test_a_counter_that_was_reset_without_a_known_range_is_a_gap(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", 500_000_000, wraps_at=None)
    clock = Clock()
    meter = _meter(find_rapl(tmp_path)[0], clock)
    file.write_text("1000000")
    clock.now += 1
    assert meter.reading()["sensors"][0]["covered_seconds"] == 0
    file.write_text("51000000")
    clock.now += 1
    assert meter.reading()["sensors"][0]["joules"] == pytest.approx(50)


def test_permission_denied_is_said_and_is_not_zero(tmp_path, monkeypatch):
    domain(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    domain(tmp_path, "intel-rapl:1", "package-1", 90_000_000)
    read = Path.read_text

    def refuse(self, *args, **kwargs):
        if self.name == "energy_uj" and "intel-rapl:1" in str(self):
            raise PermissionError(13, "Permission denied", str(self))
        return read(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refuse)
    found, missing = find_rapl(tmp_path)
    assert found == []  # one of two packages would be printed as both
    assert "package-1 can't be read (permission denied" in missing[0]
    assert "chmod a+r" in missing[0]
    clock = Clock()
    meter = _meter(found, clock, missing)
    clock.now += 1800
    energy = _footprint(meter.reading())["energy_kwh"]
    assert energy["value"] == pytest.approx(0.010)
    assert (energy["kind"], energy["measured_share"]) == ("assumed", 0.0)
    assert energy["gaps"] == missing
    assert meter.watts is None


def test_a_sensor_that_fails_on_the_way_is_filled_at_its_mean_and_said():
    clock, lamp = Clock(), Lamp(100.0)
    meter = _meter([lamp], clock)
    for _ in range(95):
        clock.now += 1
        meter.reading()
    lamp.watts = None
    clock.now += 5
    reading = meter.reading()
    power = {"chips": {"watts": 700.0, "kind": "estimated (TDP)", "source": "TDP"}}
    energy = _footprint(reading, power)["energy_kwh"]
    assert energy["value"] == pytest.approx(100 * 100 / 3.6e6)
    assert energy["kind"] == "measured"
    assert "lamp could not be read 1 times (gone)" in energy["gaps"]
    assert "lamp covered 95.0% of the time; the rest is taken at their mean" in energy["gaps"]
    clock.now += 200  # now it is half of the time
    energy = _footprint(meter.reading(), power)["energy_kwh"]
    assert energy["kind"] == "estimated (TDP)"
    assert energy["value"] == pytest.approx(700 * 300 / 3.6e6)


def test_power_is_integrated_by_trapezoids():
    # A ramp from 100 to 300 W over 10 s is 2,000 J, whatever the times of the readings.
    clock, lamp = Clock(), Lamp(100.0)
    meter = _meter([lamp], clock)
    for at in (0.5, 3.0, 3.1, 7.0, 10.0):
        clock.now = 1000 + at
        lamp.watts = 100 + 20 * at
        reading = meter.reading()
    assert reading["sensors"][0]["joules"] == pytest.approx(2000)
    assert reading["sensors"][0]["covered_seconds"] == pytest.approx(10)


def test_the_thread_reads_by_itself_and_ends():
    lamp = Lamp(50.0)
    before = threading.active_count()
    with Meter([lamp], period=0.005) as meter:
        deadline = threading.Event()
        while meter.tracks[0].covered == 0:
            deadline.wait(0.005)
        assert meter.watts == pytest.approx(50)
    assert threading.active_count() == before
    assert meter.reading()["sensors"][0]["joules"] > 0


def test_a_share_of_the_machine_is_an_estimate_and_shares_add_up(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    clock = Clock()
    meter = _meter(find_rapl(tmp_path)[0], clock)
    file.write_text("7200000000")
    clock.now += 60
    reading = meter.reading()
    parts = []
    for own in (30.0, 90.0):  # two runs that share 120 s of CPU time
        energy = _footprint({**reading, "cpu_seconds": own, "machine_cpu_seconds": 120.0})["energy_kwh"]
        assert energy["kind"] == "estimated (RAPL, by share of CPU time)"
        assert energy["measured_share"] == 0
        assert energy["parts"][0]["package_kwh"] == pytest.approx(0.002)
        parts.append(energy["value"])
    assert sum(parts) == pytest.approx(0.002)
    alone = _footprint({**reading, "cpu_seconds": 115.0, "machine_cpu_seconds": 120.0})["energy_kwh"]
    assert (alone["kind"], alone["value"]) == ("measured", pytest.approx(0.002))


def test_the_machines_cpu_time_is_its_busy_time(tmp_path):
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 50 6 7 900 0 0\ncpu0 1 1 1 1\n")
    assert machine_cpu_seconds(tmp_path / "stat") == 163 / os.sysconf("SC_CLK_TCK")
    assert machine_cpu_seconds(tmp_path / "none") is None


def test_the_same_counter_shown_by_two_dies_is_counted_once(tmp_path):
    domain(tmp_path, "intel-rapl:0", "package-0-die-0", 80_000_000_000)
    domain(tmp_path, "intel-rapl:1", "package-0-die-1", 80_000_200_000)
    found, missing = find_rapl(tmp_path)
    assert [d.name for d in found] == ["package-0-die-0"]
    assert missing == ["package-0-die-1 shows the counter of package-0-die-0 and is counted once"]


def test_our_reading_of_powercap_agrees_with_codecarbons(tmp_path):
    pytest.importorskip("codecarbon", reason="codecarbon (areca[energy]) is not installed")
    cpu = pytest.importorskip("codecarbon.core.cpu", reason="codecarbon can't be imported here")
    from codecarbon.core.units import Time

    tree = tmp_path / "powercap" / "intel-rapl"
    files = [domain(tree, f"intel-rapl:{i}", f"package-{i}", 1_000_000_000 * (i + 1)) for i in range(2)]
    rapl = cpu.IntelRAPL(rapl_dir=str(tree))
    rapl.start()
    clock = Clock()
    meter = _meter(find_rapl(tree)[0], clock)
    for i, file in enumerate(files):
        file.write_text(str(1_000_000_000 * (i + 1) + 50_000_000 * (i + 1)))
    clock.now += 2
    ours = [s["joules"] for s in meter.reading()["sensors"]]
    theirs = {k: v for k, v in rapl.get_cpu_details(Time(2)).items() if "Energy Delta" in k}
    assert sorted(3.6e6 * float(v) for v in theirs.values()) == pytest.approx(sorted(ours))
    assert ours == pytest.approx([50, 100])


def test_boards_are_counted_in_millijoules(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = FakeNvml([{"millijoules": 10_000}, {"millijoules": 99_000}, {"millijoules": 1}])
    boards, missing = find_nvml(2, nvml)
    assert [b.name for b in boards] == ["GPU 0 (NVIDIA H200)", "GPU 1 (NVIDIA H200)"]
    assert missing == []
    clock = Clock()
    meter = _meter(boards, clock)
    nvml.boards[0]["millijoules"] += 350_000
    nvml.boards[1]["millijoules"] += 650_000
    clock.now += 1
    reading = meter.reading()
    assert meter.watts == pytest.approx(1000)
    power = {"chips": {"watts": 1400.0, "kind": "estimated (TDP)", "source": "TDP"}}
    energy = _footprint(reading, power)["energy_kwh"]
    assert (energy["value"], energy["kind"]) == (pytest.approx(1000 / 3.6e6), "measured")
    assert "the host's processors and memory are not in it" in energy["gaps"]


def test_a_board_without_a_counter_gives_its_watts(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nvml = FakeNvml([{"milliwatts": 250_000}])
    clock = Clock()
    meter = _meter(find_nvml(1, nvml)[0], clock)
    clock.now += 4
    nvml.boards[0]["milliwatts"] = 350_000
    assert meter.reading()["sensors"][0]["joules"] == pytest.approx(4 * 300)


@pytest.mark.parametrize(
    ("nvml", "visible", "says"),
    [
        (FakeNvml([{}]), None, "GPU 0 (NVIDIA H200) can't be read (Not Supported)"),
        (FakeNvml([{"millijoules": 5}], mig=(0,)), None, "a board in slices (MIG)"),
        (FakeNvml([{"millijoules": 5}], starts=False), None, "NVML can't start (Driver Not Loaded)"),
        (FakeNvml([]), None, "NVML shows 0 GPUs to this process, which uses 1"),
        (FakeNvml([{"millijoules": 5}]), "3", "GPU 3 is not there for NVML (Invalid Argument)"),
    ],
)
def test_a_board_that_cannot_be_read_is_said(monkeypatch, nvml, visible, says):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    boards, missing = find_nvml(1, nvml)
    assert boards == []
    assert says in missing[0]


def test_the_boards_are_those_this_process_may_use(monkeypatch):
    nvml = FakeNvml([{"millijoules": 5}, {"millijoules": 6}, {"millijoules": 7, "uuid": "GPU-ab"}])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ab,1")
    boards, _ = find_nvml(1, nvml)
    assert [b.read() for b in boards] == [0.007]


def test_chips_without_a_sensor_are_estimated_by_what_is_published_or_unknown():
    cpu = {"backend": "tpu", "device_kind": "TPU v4", "processor": "x"}
    reading = {"seconds": 3600.0, "sensors": [], "cpu_seconds": 1.0, "machine_cpu_seconds": None, "missing": ["none"]}
    energy = _footprint(reading, sessions.expected_power(cpu, 8, 0))["energy_kwh"]
    assert energy["value"] == pytest.approx(8 * 0.3785)  # PaLM's average
    assert energy["kind"] == "estimated (published average)"
    unknown = _footprint(reading, sessions.expected_power({**cpu, "device_kind": "TPU v99"}, 8, 0))
    assert unknown["energy_kwh"]["value"] is None  # unknown is not 0
    assert unknown["energy_kwh"]["kind"] == "unknown: no power is published for TPU v99"
    assert unknown["carbon_kg"]["value"] is None
    h200 = sessions.expected_power({**cpu, "backend": "gpu", "device_kind": "NVIDIA H200"}, 2, 0)["chips"]
    assert (h200["watts"], h200["kind"]) == (1400, "estimated (TDP)")


def test_sessions_are_summed_and_their_gaps_are_said():
    def event(name, **fields):
        return {"event": name, **fields}

    def reading(seconds):
        return {
            "seconds": seconds,
            "sensors": [],
            "cpu_seconds": 1.0,
            "machine_cpu_seconds": None,
            "missing": ["no sensor"],
        }

    events = [
        event("start", power=POWER),
        event("save", energy=reading(1800.0)),
        event("resume", power=POWER),  # the first was killed; this one was killed before it saved
        event("resume", power=POWER),
        event("save", energy=reading(3600.0)),
        event("interrupt"),
        event("resume", power=POWER),
        event("evaluate", energy=reading(900.0)),
        event("finish"),
    ]
    energy = sessions.footprint(sessions.sessions_of(events), Location(), training_seconds=3150.0)["energy_kwh"]
    assert energy["seconds"] == 6300
    assert energy["value"] == pytest.approx(20 * 6300 / 3.6e6)
    assert energy["sessions"] == 4
    assert energy["training_share"] == 0.5
    assert energy["gaps"] == [
        "session 1 of 4: no sensor",
        "session 1 of 4 was killed; what it used after its last record is not in the sum",
        "session 2 of 4 ended before it recorded any energy, and is not in the sum",
        "session 3 of 4: no sensor",
        "session 4 of 4: no sensor",
    ]


def test_one_of_several_runs_in_a_program_has_its_share(tmp_path):
    file = domain(tmp_path, "intel-rapl:0", "package-0", 0)
    clock = Clock()
    meter = _meter(find_rapl(tmp_path)[0], clock)
    part = meter.shared(4)
    file.write_text("400000000")
    clock.now += 8
    whole, one = meter.reading(), part.reading()
    assert one["sensors"][0]["joules"] == pytest.approx(whole["sensors"][0]["joules"] / 4) == pytest.approx(100)
    assert one["seconds"] == pytest.approx(2)
    assert part.watts == pytest.approx(meter.watts / 4)
