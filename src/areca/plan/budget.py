"""A budget in exact training FLOPs, from whatever it is given in: FLOPs, money, chip-hours, or a deadline on chips.

    FLOPs = chip-hours x 3600 x peak FLOP/s of the chip x MFU,  chip-hours = USD / USD a chip-hour = hours x chips

MFU is PaLM's, whose FLOPs are the exact ones: every matrix product, logits and attention included. It is what the runs
behind the law reached on that chip, or what the user states, or an assumption that is printed as one.
"""

from dataclasses import dataclass

from areca.chips import Chip, chip
from areca.errors import ConfigError, check_at_least_one, check_positive
from areca.footprint.energy import check_intensity, check_watts

ASSUMED_MFU = 0.40
WHY_ASSUMED = "assumed (published: GPT-3 21.3%, Gopher 32.5%, PaLM 540B 46.2%)"
DTYPE = "bfloat16"  # of the computation, whose peak counts
EXAMPLES = {
    "flops": "2e13", "usd": "1e4", "chip_hours": "1000", "deadline_hours": "72", "usd_per_chip_hour": "2.5",
    "watts": "400",
}  # fmt: skip


@dataclass(frozen=True)
class Purchase:
    """What the user has to spend and on what. None: not given."""

    flops: float | None = None  # exact training FLOPs
    usd: float | None = None
    chip_hours: float | None = None
    deadline_hours: float | None = None
    usd_per_chip_hour: float | None = None
    chips: int | None = None
    chip: str = ""  # a name or a file of areca.chips
    mfu: float | None = None
    watts: float | None = None  # average of a chip with its share of the host; its TDP if not given
    pue: float | None = None
    kg_per_kwh: float | None = None

    def check(self, *, or_none: bool = False) -> None:
        """ConfigError for the first thing that can't be; one budget must be given, or with `or_none` at most one."""
        given = [n for n in ("flops", "usd", "chip_hours", "deadline_hours") if getattr(self, n) is not None]
        if len(given) > 1:
            both = " and ".join(map(_option, given))
            raise ConfigError(f"{both} are both budgets; give one of them, and let the others follow from it.")
        for name, example in EXAMPLES.items():
            check_positive(_option(name), getattr(self, name), example)
        if self.watts is not None:
            check_watts(self.watts, "--watts")
        if self.kg_per_kwh is not None:
            check_intensity(self.kg_per_kwh, "--kg-per-kwh")
        check_at_least_one("--chips", self.chips)
        if self.mfu is not None and not 0 < self.mfu <= 1:
            raise ConfigError(f"--mfu is {self.mfu}; it is a share of the peak, above 0 and at most 1, such as 0.4.")
        if self.pue is not None and not 1 <= self.pue < 100:
            raise ConfigError(f"--pue is {self.pue}; a building takes at least what its machines take, so at least 1.")
        if not given and not or_none:
            raise ConfigError(
                "there is no budget; give one of --flops, --usd with --usd-per-chip-hour, --chip-hours, or "
                "--deadline-hours with --chips."
            )
        needs = {"usd": ("usd_per_chip_hour", "chip"), "chip_hours": ("chip",), "deadline_hours": ("chips", "chip")}
        for name in given:
            if missing := [_option(n) for n in needs.get(name, ()) if not getattr(self, n)]:
                raise ConfigError(f"{_option(name)} is no number of FLOPs yet; give {' and '.join(missing)} too.")
        hardware = ("mfu", "watts", "pue", "kg_per_kwh", "usd_per_chip_hour", "chips")
        if not self.chip and (idle := [_option(n) for n in hardware if getattr(self, n) is not None]):
            raise ConfigError(f"{idle[0]} says something of a chip, and none is named; give --chip, such as h100.")


@dataclass(frozen=True)
class Machine:
    """The chip that is bought and how well it is used."""

    chip: Chip
    mfu: float
    mfu_source: str  # how it is known, in words
    chips: int | None = None  # that share the work
    usd_per_chip_hour: float | None = None

    @property
    def flops_per_chip_hour(self) -> float:
        """Exact training FLOPs."""
        return 3600 * self.chip.peak(DTYPE) * self.mfu


@dataclass(frozen=True)
class Budget:
    """Exact training FLOPs, and in words where they are from."""

    flops: float
    words: str


def machine_of(purchase: Purchase, observed: tuple[Chip, float, str] | None = None, devices: int = 0) -> Machine | None:
    """The machine that is named, or None. `observed` is the (chip, MFU, run) of the runs behind the law.

    `devices` are those of the mesh, which are the chips if `--chips` does not say.
    """
    if not purchase.chip:
        return None
    found = chip(purchase.chip)
    found.peak(DTYPE)
    if purchase.mfu is not None:
        mfu, source = purchase.mfu, "as stated with --mfu"
    elif observed is not None and observed[0].name == found.name:
        mfu, source = observed[1], f"measured in {observed[2]} on this chip"
    else:
        mfu, source = ASSUMED_MFU, WHY_ASSUMED
    return Machine(found, mfu, source, purchase.chips or devices or None, purchase.usd_per_chip_hour)


def budget_of(purchase: Purchase, machine: Machine | None) -> Budget | None:
    """The budget of a purchase that was checked; None where none is given."""
    p = purchase
    if p.flops is not None:
        return Budget(p.flops, f"{p.flops:.4g} exact FLOPs")
    if machine is None:
        return None
    if p.usd is not None and p.usd_per_chip_hour is not None:
        hours = p.usd / p.usd_per_chip_hour
        words = f"{p.usd:,.10g} USD at {p.usd_per_chip_hour:g} a chip-hour are {hours:,.4g} chip-hours"
    elif p.chip_hours is not None:
        hours, words = p.chip_hours, f"{p.chip_hours:,.10g} chip-hours"
    elif p.deadline_hours is not None and p.chips is not None:
        hours = p.deadline_hours * p.chips
        words = f"{p.deadline_hours:g} hours on {p.chips:,} chips are {hours:,.10g} chip-hours"
    else:
        return None
    flops = hours * machine.flops_per_chip_hour
    return Budget(flops, f"{words} of {machine.chip.name} at an MFU of {machine.mfu:.1%}: {flops:.4g} exact FLOPs")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
