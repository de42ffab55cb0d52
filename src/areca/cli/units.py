"""Numbers as a person reads them: three or four figures and a fitting unit."""


def byte_size(value: float) -> str:
    """671 MiB, 15.1 GiB, 1.31 GiB; bytes below a KiB."""
    if value < 2**10:
        return f"{value:,.0f} B"
    size, unit = _unit(value, ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")))
    figures = value / size
    return f"{figures:,.{2 if figures < 9.995 else 1 if figures < 99.95 else 0}f} {unit}"


def short(value: float) -> str:
    """540.36 B, 780.00 B, 1.20 M."""
    if value < 1e3:
        return f"{value:.0f}"
    size, unit = _unit(value, ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")))
    return f"{value / size:.2f} {unit}"


def compact(value: float, low: float | None = None, *, figures: int = 3) -> str:
    """2.06 B, 512; with `low` the range 1.87 to 2.06 B."""
    size, unit = _unit(value, ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"))) if value >= 1e3 else (1.0, "")
    return f"{'' if low is None else f'{low / size:.{figures}g} to '}{value / size:.{figures}g}{unit}"


def counted(number: int, word: str) -> str:
    """1 run, 12 runs."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """11.4 s, 56.3 ms, 40.6 ns."""
    size, unit = _unit(seconds, ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))
    return f"{seconds / size:,.3g} {unit}"


def _unit(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """The largest unit that the value reaches, or the smallest."""
    return next((u for u in units if value >= u[0]), units[-1])
