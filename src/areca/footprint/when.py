"""When: the cheapest hours for a run, from a table of grid intensity by region and hour that the user gives.

    region,hour,kg_per_kwh          a day that repeats: hours 0 to 23
    region,timestamp,g_per_kwh      hours as they come: 2026-01-31T13:00

One unit for the whole table, told by the column's name; figures that can't be of that unit are refused. A run of so
many hours draws evenly, so its intensity is the mean over its window.
"""

import csv
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from areca.errors import ConfigError, DataError, closest
from areca.footprint.energy import HIGHEST_KG_PER_KWH

UNITS = {"kg_per_kwh": 1.0, "g_per_kwh": 1e-3}
LEAST_G_PER_KWH = 1.0  # no grid is below; less under g_per_kwh is kg
DAY = 24


@dataclass(frozen=True)
class Hourly:
    """kg CO2e per kWh of each hour of a region: a repeating day (`first` None), or hours from `first` on."""

    region: str
    kg_per_kwh: tuple[float, ...]
    first: datetime | None

    def name(self, hour: int) -> str:
        """The hour as a person reads it."""
        if self.first is None:
            return f"{hour % DAY:02}:00"
        return (self.first + timedelta(hours=hour)).isoformat(sep=" ", timespec="minutes")


@dataclass(frozen=True)
class Window:
    """The best start in a region: its intensity there, and on average and at worst over all starts."""

    region: str
    start: str
    start_hour: int  # of the day, or since the table's first
    hours: float
    kg_per_kwh: float
    mean_kg_per_kwh: float
    worst_kg_per_kwh: float


def read_intensity(path: Path | str) -> dict[str, Hourly]:
    """The hours of every region in a CSV table.

    Raises DataError: no such file, columns that are missing, two units, a figure that is none or of the other unit, an
    hour that is twice there or not at all.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as f:
            reader = csv.DictReader(f)
            columns, rows = list(reader.fieldnames or []), list(reader)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except (IsADirectoryError, UnicodeDecodeError, csv.Error):
        raise DataError(f"{path} is no table in CSV; give columns region, hour and kg_per_kwh.") from None
    time, unit = _columns(path, columns)
    found: dict[str, dict[int | datetime, float]] = {}
    for line, row in enumerate(rows, 2):
        region = (row["region"] or "").strip().lower()
        if not region:
            raise DataError(f"{path} line {line} names no region.")
        hour = _hour(path, line, row[time], time)
        hours = found.setdefault(region, {})
        if hour in hours:
            raise DataError(f"{path} line {line} has {region} at {time} {row[time]} a second time; keep one.")
        hours[hour] = _figure(path, line, row[unit], unit)
    if not found:
        raise DataError(f"{path} has no rows.")
    return {region: _hourly(path, region, hours) for region, hours in found.items()}


def best_start(table: dict[str, Hourly], hours: float, regions: list[str] | None = None) -> list[Window]:
    """The best start of a run of so many hours in every region (or those named), the cheapest first.

    ConfigError for hours that can't be or are longer than a table that does not repeat, and for an unknown region.
    """
    if not 0 < hours < float("inf"):
        raise ConfigError(f"hours is {hours:g}; a window needs a number above 0.")
    for name in regions or []:
        if name.lower() not in table:
            raise ConfigError(
                f"the table has no region {name!r}{closest(name.lower(), table)}; it has {', '.join(table)}."
            )
    chosen = [table[name.lower()] for name in regions] if regions else list(table.values())
    return sorted((_best(hourly, hours) for hourly in chosen), key=lambda w: w.kg_per_kwh)


def _best(hourly: Hourly, hours: float) -> Window:
    values = hourly.kg_per_kwh
    whole, part = int(hours), hours - int(hours)
    needed = whole + (part > 0)
    if hourly.first is None:
        starts = range(DAY)
    elif needed > len(values):
        raise ConfigError(
            f"the table has {len(values)} hours of {hourly.region}, fewer than the {hours:g} of the run; give a longer "
            "one, or a day that repeats (column hour)."
        )
    else:
        starts = range(len(values) - needed + 1)
    n = len(values)
    means = []
    for s in starts:
        # Days that pass whole add the same to every start.
        total = sum(values[(s + i) % n] for i in range(whole)) + part * values[(s + whole) % n]
        means.append(total / hours)
    best = min(starts, key=lambda s: means[s])
    return Window(
        hourly.region, hourly.name(best), best, hours, means[best], sum(means) / len(means), max(means)
    )  # fmt: skip


def _columns(path: Path, columns: list[str]) -> tuple[str, str]:
    times = [c for c in ("hour", "timestamp") if c in columns]
    units = [c for c in UNITS if c in columns]
    if "region" not in columns or len(times) != 1 or not units:
        raise DataError(
            f"{path} has the columns {', '.join(columns) or 'of nothing'}; it needs region, one of hour and timestamp, "
            "and one of kg_per_kwh and g_per_kwh."
        )
    if len(units) > 1:
        raise DataError(f"{path} has intensities in two units ({' and '.join(units)}); keep one of the columns.")
    return times[0], units[0]


def _hour(path: Path, line: int, text: str | None, column: str) -> int | datetime:
    text = (text or "").strip()
    try:
        if column == "hour":
            hour = int(text)
            if 0 <= hour < DAY:
                return hour
        else:
            time = datetime.fromisoformat(text)
            if time.minute == time.second == time.microsecond == 0:
                return time
    except ValueError:
        pass
    wanted = "a whole hour from 0 to 23" if column == "hour" else "a full hour such as 2026-01-31T13:00"
    raise DataError(f"{path} line {line}: {column} is {text!r}; it must be {wanted}.")


def _figure(path: Path, line: int, text: str | None, unit: str) -> float:
    try:
        value = float((text or "").strip())
    except ValueError:
        raise DataError(f"{path} line {line}: {unit} is {text!r}, which is not a number.") from None
    kg = value * UNITS[unit]
    if not 0 <= kg < float("inf"):
        raise DataError(f"{path} line {line}: {unit} is {text}; it must be a number of at least 0.")
    if kg > HIGHEST_KG_PER_KWH:
        other = "g/kWh or kg/MWh" if unit == "kg_per_kwh" else "kg per some other unit"
        raise DataError(
            f"{path} line {line}: {unit} is {text}, more than any grid emits; is it in {other}? Use one unit."
        )
    if unit == "g_per_kwh" and 0 < value < LEAST_G_PER_KWH:
        raise DataError(
            f"{path} line {line}: {unit} is {text}, less than any grid emits; is it in kg/kWh? Use one unit."
        )
    return kg


def _hourly(path: Path, region: str, hours: dict[int | datetime, float]) -> Hourly:
    zones = {k.tzinfo is not None for k in hours if isinstance(k, datetime)}
    if len(zones) > 1:
        raise DataError(f"{path} has hours of {region} with and without a time zone; write all in one way.")
    first = min(hours)  # type: ignore[type-var]
    if isinstance(first, datetime):
        wanted: list[int | datetime] = [first + timedelta(hours=i) for i in range(len(hours))]
    else:
        wanted = list(range(DAY))
    missing = next((w for w in wanted if w not in hours), None)
    if missing is not None:
        raise DataError(f"{path} lacks the hour {missing} of {region}; a window can't be averaged over a gap.")
    return Hourly(region, tuple(hours[k] for k in wanted), first if isinstance(first, datetime) else None)
