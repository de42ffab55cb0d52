"""`areca doctor`: what this machine has and can do, and what would go wrong."""

from typing import Any


def run(argv: list[str]) -> int:
    """Parses and runs `areca doctor`."""
    from areca.cli.options import call

    return call(doctor, argv, "areca doctor")


def doctor(*, out: str = "runs", json: bool = False) -> int:
    """Say what this machine has and can do, and what would go wrong on it, each problem with its way out.

    Measures peak FLOP/s and memory bandwidth of each kind of device and the disk's write speed, in some seconds. The
    exit code is 0, or 1 where a problem would stop a run; what only slows one down or changes its numbers is said too.

    Example: areca doctor --out runs

    Args:
        out: the directory that runs will go to, whose disk is looked at.
        json: print everything for machines.
    """
    from areca.cli.options import print_json
    from areca.doctor.diagnose import diagnose

    found = diagnose(out)
    print_json(found) if json else _print(found)
    return 0 if found["ok"] else 1


def _print(found: dict[str, Any]) -> None:
    width = max(map(len, found["findings"])) + 2
    for name, finding in found["findings"].items():
        for i, line in enumerate(finding["lines"]):
            print(f"{name if i == 0 else '':<{width}}{line}")
    problems = found["problems"]
    print()
    if not problems:
        print(f"Nothing is wrong ({found['seconds']:.1f} s).")
    for problem in problems:
        print(f"{'STOPS A RUN' if problem['stops'] else 'note'} ({problem['of']}): {problem['says']}")
