"""A run or a family of runs in lines of text that fit a terminal, wide or narrow, or a log."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from areca.watch.run import RunState

BARS = "▁▂▃▄▅▆▇█"
EVENTS_SHOWN = 6
LABEL = 10  # characters of a label, with the space behind
PHASES = {
    "not begun": "not begun",
    "starting": "starting (loading, compiling)",
    "running": "running",
    "unseen": "being written by a process that can't be seen from here",
    "stopped": "stopped; `areca train --resume` goes on",
    "killed": "its process is gone from this machine; `areca train --resume` goes on",
    "diverged": "stopped: it was not finite any more",
    "finished": "finished",
}


def run_lines(state: RunState, width: int = 80, plain: bool = False) -> list[str]:
    """The lines of one run, none longer than `width`; without the curve where `plain`."""
    lines = [f"{state.name}: {_phase(state)}"]
    if state.step or state.steps:
        share = f" ({state.step / state.steps:.1%})" if state.steps else ""
        of = f" of {state.steps:,}" if state.steps else ""
        lines.append(_line("step", f"{state.step:,}{of}{share}"))
        total = f" of {si(state.total_tokens)}" if state.total_tokens else ""
        lines.append(_line("tokens", f"{si(state.tokens)}{total}"))
        if state.steps and not plain:
            lines.append(_line("", bar(state.step / state.steps, min(50, width - LABEL))))
    if state.loss is not None or state.curve:
        recent = f"  mean of the last steps {state.loss_recent:.4f}" if state.loss_recent is not None else ""
        lines.append(_line("loss", f"{'not finite' if state.loss is None else f'{state.loss:.4f}'}{recent}"))
        if not plain and (drawn := spark(state.curve, min(60, width - LABEL))):
            lines.append(_line("", drawn))
    if state.heldout is not None:
        lines.append(_line("held-out", f"{state.heldout[1]:.4f} after step {state.heldout[0]:,}"))
    if state.learning_rate is not None:
        lines.append(_line("rate", f"{state.learning_rate:.4g}"))
    if state.tokens_per_second is not None:
        mfu = f"  MFU {state.mfu:.1%}" if state.mfu is not None else "  MFU unknown"
        lines.append(_line("speed", f"{state.tokens_per_second:,.0f} tokens/s{mfu}"))
    if state.seconds_left is not None:
        lines.append(_line("left", clock(state.seconds_left)))
    if state.process.memory is not None:
        peak = f", {gib(state.process.memory_peak)} at most" if state.process.memory_peak else ""
        lines.append(_line("memory", f"{gib(state.process.memory)} of its process{peak}"))
    if state.energy_step is not None:
        value = "unknown" if state.energy_kwh is None else f"{state.energy_kwh:.4g} kWh, {state.energy_kind}"
        lines.append(_line("energy", f"{value}, up to step {state.energy_step:,}"))
    if state.islands is not None:
        lines.append(_line("islands", f"{state.islands[0]} of {state.islands[1]}"))
    if state.rewinds:
        lines.append(_line("rewinds", str(state.rewinds)))
    lines += [_line(*event_line(e)) for e in state.events[-EVENTS_SHOWN:]]
    return [cropped(line, width) for line in lines]


def family_lines(states: Sequence[RunState], name: str, width: int = 100, height: int = 0) -> list[str]:
    """A line for each run, those at work first where not all fit into `height` lines."""
    counts: dict[str, int] = {}
    for s in states:
        counts[s.phase] = counts.get(s.phase, 0) + 1
    lines = [f"{name}: {len(states)} runs, {', '.join(f'{n} {phase}' for phase, n in counts.items())}"]
    shown = list(states)
    if height and len(shown) > height - 3 > 0:
        order = ("running", "starting", "unseen", "diverged", "killed", "stopped", "finished", "not begun")
        keep = sorted(range(len(shown)), key=lambda i: (order.index(shown[i].phase), -i))[: height - 3]
        shown = [shown[i] for i in sorted(keep)]
    longest = max((len(s.name) for s in shown), default=0)
    for s in shown:
        share = f"{s.step / s.steps:4.0%}" if s.steps and s.step else "    "
        loss = f"loss {s.loss_recent:.4f}" if s.loss_recent is not None else ""
        speed = f"{s.tokens_per_second:,.0f} tokens/s" if s.tokens_per_second and s.phase == "running" else ""
        left = f"{clock(s.seconds_left)} left" if s.seconds_left is not None else ""
        held = f"held-out {s.heldout[1]:.4f}" if s.heldout else ""
        back = f"{s.rewinds} rewinds" if s.rewinds else ""
        words = [w for w in (loss, held, speed, left, back) if w]
        lines.append(f"{s.name:<{longest}}  {s.phase:<9} {share}  {'  '.join(words)}")
    if len(shown) < len(states):
        lines.append(f"and {len(states) - len(shown)} more")
    return [cropped(line.rstrip(), width) for line in lines]


def event_line(event: Mapping[str, Any]) -> tuple[str, str]:
    """(when, what happened) of an event."""
    kind, step = str(event.get("event")), event.get("step")
    at = f" at step {step:,}" if isinstance(step, int) else ""
    words = {
        "start": "started",
        "resume": f"resumed{at}",
        "save": f"saved{at}",
        "evaluate": f"held-out loss {event.get('loss', 0):.4f}{at}" if _is_number(event.get("loss")) else "evaluated",
        "spike": f"spike of the {event.get('what', 'loss')}{at}",
        "rewind": f"went back to step {event.get('to_step')} and skips examples to {event.get('skipped_to')}",
        "island_lost": f"lost {event.get('island') or 'an island'}{at}: {event.get('why', '')}",
        "island_joined": f"{event.get('island', 'an island')} joined{at}",
        "island_not_back": f"{event.get('island', 'an island')} could not be started again: {event.get('why', '')}",
        "interrupt": f"stopped by {event.get('signal', 'a signal')}{at}",
        "not_finite": f"not finite{at}",
        "tracker_failed": f"{event.get('tracker')} takes no more numbers: {event.get('why', '')}",
        "tracking": f"{event.get('tracker')} follows",
        "finish": f"finished{at}",
    }
    moment = event.get("time")
    when = ago(time.time() - moment) if isinstance(moment, int | float) else ""
    return when, words.get(kind, f"{kind}{at}")


def spark(values: Sequence[float], width: int) -> str:
    """A curve in one line of `width` characters at most: means over equal stretches, from the lowest to the highest.

    The highest is that of the last nine tenths: the first one falls from the loss of guessing and would flatten them.
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    means = []
    for i in range(count):
        part = finite[i * len(finite) // count : (i + 1) * len(finite) // count]
        means.append(sum(part) / len(part))
    later = means[count // 10 :]
    low, high = min(means), max(later)
    span = high - low
    last = len(BARS) - 1
    return "".join(BARS[min(last, round((m - low) / span * last))] if span > 0 else BARS[0] for m in means)


def bar(share: float, width: int) -> str:
    """How far, as a bar."""
    done = round(max(0.0, min(1.0, share)) * width)
    return "█" * done + "░" * (max(0, width) - done)


def cropped(line: str, width: int) -> str:
    """The line in so many characters, a cut marked; nothing in it moves the cursor."""
    line = "".join(c if c.isprintable() else " " for c in line)
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def si(value: float) -> str:
    """1,234,567 as 1.235M."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:,.0f}"


def gib(value: float) -> str:
    """Bytes in GiB or MiB."""
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def clock(seconds: float) -> str:
    """Seconds as m:ss, h:mm:ss or days."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h} h"
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"


def ago(seconds: float) -> str:
    """How long ago, in nine characters up to 999 days."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _phase(state: RunState) -> str:
    words = PHASES[state.phase]
    if state.process.pid and state.phase in ("running", "starting"):
        words += f", pid {state.process.pid}"
    if state.since_last is not None and state.phase in ("running", "unseen") and state.since_last > 10:
        words += f"; nothing was written for {clock(state.since_last)}"
    if state.n_params:
        words += f"; {si(state.n_params)} parameters"
    return words


def _line(label: str, value: str) -> str:
    return f"{label:<{LABEL - 1}} {value}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
