"""Processors, memory, limits and clock, as Linux tells of them; what another system does not tell is unknown.

A container sees the machine's processors and memory and may use less of both: cgroups say how much, in two versions.
`root` is where the system's files are, for tests.
"""

import os
import resource
import time
from pathlib import Path

from areca import runtime
from areca.doctor.finding import Finding, size

ROOT = Path("/")
LEAST_MEMORY, LITTLE_MEMORY = 256 << 20, 2 << 30
UNLIMITED = 1 << 60  # cgroups write "no limit" as about 2^63
LEAST_FILES = 1024
LONG_AGO = 1_700_000_000  # November 2023: no version of what runs here is as old


def processors(root: Path = ROOT) -> Finding:
    """The CPU, the processors that are seen, those of this process, and the share of them that a container may use."""
    found = Finding()
    seen, mine = os.cpu_count(), runtime.available_cores()
    quota = cpu_quota(root)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    found.values = {
        "name": runtime.processor_name(), "seen": seen, "of_this_process": mine, "quota": quota, "load": load,
        "threads": mine,
    }  # fmt: skip
    words = f"{found.values['name']}; {seen} processors, {mine} of them for this process"
    found.lines.append(f"{words}{'' if quota is None else f', {quota:g} by the quota of its container'}")
    found.lines.append(f"a run has {mine} threads unless threads says otherwise; load {_known(load, '.1f')}")
    if quota is not None and quota < mine - 0.05:
        fit = max(1, int(quota))
        found.problem(
            f"the container may use {quota:g} processors of the {mine} that it sees, so {mine} threads would be held "
            f"up again and again; set threads = {fit} in the run's configuration."
        )
    if load is not None and load > mine + 1:
        found.problem(
            f"the load is {load:.1f} on {mine} processors, so others compute here and times mean little; wait for them "
            "or measure elsewhere."
        )
    return found


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors that the cgroup of this process may use; None for no limit, or where nothing says so."""
    limits = []
    for path in _groups(root, ""):
        quota, _, period = (_text(path / "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) / int(period))
    for path in _groups(root, "cpu"):
        quota, period = _int(path / "cpu.cfs_quota_us"), _int(path / "cpu.cfs_period_us")
        if quota and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory(root: Path = ROOT) -> Finding:
    """Memory, what is free of it, swap, and the limit of a container."""
    found, told = Finding(), _meminfo(root)
    total, free, swap = told.get("MemTotal"), told.get("MemAvailable"), told.get("SwapTotal")
    swap_free = told.get("SwapFree")
    limit, used = memory_limit(root)
    left = None if limit is None else max(0, limit - (used or 0))
    usable = min((v for v in (free, left) if v is not None), default=None)
    found.values = {
        "total_bytes": total, "available_bytes": free, "limit_bytes": limit, "limit_used_bytes": used,
        "usable_bytes": usable, "swap_bytes": swap, "swap_free_bytes": swap_free,
    }  # fmt: skip
    by = "" if limit is None else f"; the container's limit is {size(limit)}, of which {size(used)} are used"
    found.lines.append(f"{size(total)}, {size(free)} available; swap {size(swap)}{by}")
    if usable is None:
        return found
    if usable < LITTLE_MEMORY:
        only_swap = " and the rest would go to swap, which is a thousand times slower" if swap_free else ""
        found.problem(
            f"{size(usable)} of memory are left{only_swap}; end what is not needed, or raise the container's limit.",
            stops=usable < LEAST_MEMORY,
        )
    if swap and swap_free is not None and swap - swap_free > swap / 2 and usable < LITTLE_MEMORY:
        found.problem(f"{size(swap - swap_free)} are in swap already; a run would wait for the disk at every step.")
    return found


def memory_limit(root: Path = ROOT) -> tuple[int | None, int | None]:
    """(limit, used) in bytes of the cgroup of this process with the smallest limit; (None, None) for none.

    What the kernel would give up at once, pages of files that nobody reads any more, is not used.
    """
    limits = []
    for kind, limit_name, used_name in (
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for path in _groups(root, kind):
            limit = _int(path / limit_name)
            if limit is not None and limit < UNLIMITED:
                used = _int(path / used_name)
                limits.append((limit, None if used is None else max(0, used - _idle_pages(path / "memory.stat"))))
    return min(limits, key=lambda pair: pair[0], default=(None, None))


def _idle_pages(path: Path) -> int:
    found = dict(line.split(maxsplit=1) for line in (_text(path) or "").splitlines() if " " in line)
    value = found.get("total_inactive_file") or found.get("inactive_file") or "0"
    return int(value) if value.isdigit() else 0


def limits() -> Finding:
    """Limits of this process (`ulimit`) that a run can run into."""
    found = Finding()
    names = {
        "open_files": ("RLIMIT_NOFILE", "-n"), "file_size": ("RLIMIT_FSIZE", "-f"), "cpu_seconds": ("RLIMIT_CPU", "-t"),
        "address_space": ("RLIMIT_AS", "-v"), "processes": ("RLIMIT_NPROC", "-u"),
    }  # fmt: skip
    for name, (constant, _) in names.items():
        if hasattr(resource, constant):
            soft = resource.getrlimit(getattr(resource, constant))[0]
            found.values[name] = None if soft == resource.RLIM_INFINITY else soft
    judge_limits(found, names)
    said = [f"{n.replace('_', ' ')} {'unlimited' if v is None else f'{v:,}'}" for n, v in found.values.items()]
    found.lines.append(", ".join(said))
    return found


def judge_limits(found: Finding, names: dict[str, tuple[str, str]]) -> None:
    """Adds the problems of limits that are too low; None is no limit."""
    v = found.values
    if (files := v.get("open_files")) is not None and files < LEAST_FILES:
        found.problem(
            f"only {files} files may be open at once, and checkpoints, islands and caches open many; `ulimit -n 4096`."
        )
    if (written := v.get("file_size")) is not None:
        found.problem(
            f"no file may grow beyond {size(written)}, and checkpoints and token stores do; `ulimit -f unlimited`.",
            stops=written < 64 << 20,
        )
    if (seconds := v.get("cpu_seconds")) is not None:
        found.problem(
            f"the system ends a process after {seconds:,} s of CPU time; `ulimit -t unlimited`.", stops=seconds < 600
        )
    if (space := v.get("address_space")) is not None:
        found.problem(
            f"a process may map {size(space)} of addresses, and XLA maps far more than it uses; `ulimit -v unlimited`.",
            stops=space < 8 << 30,
        )
    if (processes := v.get("processes")) is not None and processes < 512:
        found.problem(
            f"this user may have {processes} threads and processes, which XLA's pools exceed; `ulimit -u 4096`."
        )


def clock(now: float | None = None) -> Finding:
    """The clock: events have its time, and speeds those of the clock that only goes forward."""
    found, now = Finding(), time.time() if now is None else now
    info = time.get_clock_info("perf_counter")
    found.values = {"unix_seconds": now, "resolution_seconds": info.resolution, "monotonic": info.monotonic}
    found.lines.append(
        f"{time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(now))}, steps of {info.resolution:.0e} s"
    )
    if now < LONG_AGO:
        found.problem(
            f"the clock says {time.strftime('%Y-%m-%d', time.gmtime(now))}; set it, or certificates and the times of "
            "events are wrong."
        )
    return found


def _meminfo(root: Path) -> dict[str, int]:
    """Bytes by name of /proc/meminfo; elsewhere the total alone."""
    found = {}
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if (words := value.split()) and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    if not found and root == ROOT and "SC_PHYS_PAGES" in os.sysconf_names:
        found["MemTotal"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return found


def _groups(root: Path, controller: str) -> list[Path]:
    """Directories of the cgroups that hold this process, of one controller of version 1, or ("") of version 2.

    A container may show its own group as the root or under the host's path, so all parents are looked at.
    """
    base = root / "sys/fs/cgroup" / controller if controller else root / "sys/fs/cgroup"
    found = [base]
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        of, _, path = rest.partition(":")
        if controller in of.split(",") if controller else not of:
            place = base / path.strip("/")
            found += [place, *(p for p in place.parents if base in p.parents)]
    return list(dict.fromkeys(found))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _int(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _known(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)
