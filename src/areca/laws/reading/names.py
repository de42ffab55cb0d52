"""What the name of a column tells of its unit: "tokens (B)", "params_m", "petaflop_days", "val_bpb", "accuracy_pct".

A name is cut into words ("evalBpb", "eval/bpb" and "Eval BPB" are the same two), and spellings of units are looked for
in them, the longest first. Some tell what a number must be brought from by other means (bits a character, GPU-hours,
epochs): those are asked about and never read as if nothing had been said.
"""

import re
from dataclasses import dataclass

from areca.laws.reading.units import FLOPS, SCALES, UNITS

LONGEST = 4  # words of a unit
_COUNTS = {"thousand": "K", "million": "M", "billion": "B", "trillion": "T", "bn": "B"}
_COUNTS |= {f"{word}s": unit for word, unit in _COUNTS.items() if len(word) > 2}
_COUNTS |= {f"{c}{noun}": u for noun in ("tokens", "params") for c, u in zip("mbg", "MBB", strict=True)}
_LETTERS = {"k": "K", "m": "M", "b": "B", "t": "T"}  # at the end of a name of several words
_COUNTED = re.compile(r"token|param|size|step|embed|\b[nds]\b")  # what a letter at the end may scale
_PREFIXES = {"g": "giga", "t": "tera", "p": "peta", "e": "exa", "z": "zetta", "y": "yotta"}
_FLOPS = {
    f"{prefix}{noun}": f"{short}flops"
    for short, long in _PREFIXES.items()
    for prefix in (short, long)
    for noun in ("flop", "flops", "flos")
}
_PF_DAYS = {f"{p}{d}": "pf-days" for p in ("pf", "pflop", "pflops", "petaflop", "petaflops") for d in ("day", "days")}
_LOSS = {
    **dict.fromkeys(("nats", "natspertoken", "natstoken", "logperplexity", "logppl"), "nats"),
    **dict.fromkeys(("bits", "bitspertoken", "bitspertok", "bitstoken", "bpt", "log2perplexity"), "bits-per-token"),
    **dict.fromkeys(("bitsperbyte", "bitsbyte", "bpb"), "bits-per-byte"),
    **dict.fromkeys(("perplexity", "ppl", "pplx", "tokenperplexity", "tokenppl"), "perplexity"),
}
_SCORE: dict[str, str] = dict.fromkeys(("percent", "percentage", "pct", "%"), "percent")
_SEQUENCES = ("sequences", "sequence", "seqs", "samples", "examples")
_STEPS = ("steps", "step", "iterations", "iters", "updates", "globalstep")
_TOKENS = ("n_tokens", "unique_tokens", "batch_tokens", "b_crit")
_TIME = ("second", "seconds", "sec", "secs", "hour", "hours", "day", "days")

# What a name tells and no unit of ours is, and how to get there: spelling -> (in words, way out).
_ASKED_LOSS = {
    **dict.fromkeys(
        ("bpc", "bitsperchar", "bitspercharacter"),
        ("bits a character", "say --unit loss=bits-per-byte:NUMBER with the characters in a token for NUMBER"),
    ),
    **dict.fromkeys(
        ("bitsperword", "bpw", "wordperplexity", "wordppl", "natsperword", "lossperword"),
        ("a loss of words", "give the loss of tokens, or say --unit loss=nats if it is that"),
    ),
    **dict.fromkeys(
        ("byteperplexity", "byteppl", "natsperbyte", "natsperchar", "lossperbyte", "lossperchar"),
        ("a loss of bytes or characters", "give bits a byte with --unit loss=bits-per-byte:NUMBER, or nats a token"),
    ),
}
_ASKED_TOKENS = {
    **dict.fromkeys(("epoch", "epochs"), ("epochs", "multiply them by the tokens in one")),
    **dict.fromkeys(
        ("bytes", "characters", "chars", "words", "documents", "mb", "gb", "tb"),
        ("text and not tokens", "divide it by what a token holds of it"),
    ),
}
_ASKED_PARAMS: dict[str, tuple[str, str]] = dict.fromkeys(
    ("bytes", "mb", "gb", "tb", "mib", "gib"), ("bytes", "divide them by the bytes of one")
)


@dataclass(frozen=True)
class Told:
    """What a name tells: the unit ("" for nothing), or what it counts that is no unit of ours and the way out."""

    unit: str = ""
    counts: str = ""
    way_out: str = ""


def words(column: str) -> list[str]:
    """["eval", "bits", "per", "byte"] of "eval/bitsPerByte"; small letters."""
    return re.findall(r"%|[a-z0-9^+*]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", column).lower())


def told(quantity: str, column: str) -> Told:
    """What the column's name tells of its unit, read as that quantity."""
    if quantity not in UNITS:
        return Told()
    if quantity == "loss":
        return _of_loss(column)
    if quantity == "score":
        return Told(_found(words(column), _SCORE)[0])
    if quantity.startswith("flops"):
        return _of_flops(column)
    return _of_count(quantity, column)


def bare(column: str) -> str:
    """The name in small letters and digits without the unit it tells: "tokens" of "tokens (B)" and "tokens_b", "flops"
    of "exaflops", "valloss" of "val_loss_bits". A loss that is called by its unit alone ("val_bpb") keeps it."""
    its = words(column)
    if _power(column):
        its = [w for w in its if not re.fullmatch(r"[x*]?(1e|10[\^*]+)\+?\d+", w)]
    elif its[1:] and its[-1] in _LETTERS and _COUNTED.search(" ".join(its[:-1])):
        its = its[:-1]
    for spellings in (_COUNTS, _PF_DAYS, _FLOPS, _LOSS, _SCORE):
        unit, at, end = _found(its, spellings)
        rest = [w for w in its[:at] + its[end:] if w not in ("in", "of")]
        if spellings is _COUNTS and unit and (noun := re.fullmatch("[mbg](tokens|params)", its[at])):
            rest = [*its[:at], noun[1], *its[end:]]
        if spellings in (_PF_DAYS, _FLOPS) and not re.search(r"compute|flop|\bc\b", " ".join(rest)):
            # What is called tflops is often a speed, and no total by its name alone.
            rest = its if unit in ("gflops", "tflops", "pflops") else [*its[:at], "flops", *its[end:]]
        if spellings is _LOSS and rest[-1:] != ["loss"]:
            continue
        if unit and rest:
            its = rest
    return "".join(re.sub("[^a-z0-9]", "", w) for w in its)


def _found(its: list[str], spellings: dict[str, str]) -> tuple[str, int, int]:
    """(the unit, the first word, the one after the last) of the longest spelling among words, ("", 0, 0) if none."""
    for length in range(min(LONGEST, len(its)), 0, -1):
        for at in range(len(its) - length, -1, -1):
            if unit := spellings.get("".join(its[at : at + length])):
                return unit, at, at + length
    return "", 0, 0


def _asked(its: list[str], table: dict[str, tuple[str, str]]) -> Told | None:
    found = _found(its, {spelling: spelling for spelling in table})[0]
    return Told("", *table[found]) if found else None


def _of_loss(column: str) -> Told:
    its = words(column)
    if asked := _asked(its, _ASKED_LOSS):
        return asked
    if unit := _found(its, _LOSS)[0]:
        return Told(unit)
    ends = sorted((s for s in _LOSS if "".join(its).endswith(s)), key=len)  # "valppl"
    return Told(_LOSS[ends[-1]]) if ends else Told()


def _of_flops(column: str) -> Told:
    its = words(column)
    if _found(its, _PF_DAYS)[0]:
        return Told("pf-days")
    if {"per", "mfu"} & set(its) or its[-1:] == ["s"]:
        return Told("", "a rate", "give the FLOPs of the whole run, or say --unit flops=flops if it is that")
    if set(_TIME) & set(its):
        return Told("", "time", "give FLOPs, or say --unit flops=pf-days if it is that")
    if power := _power(column):
        unit = next((u for u, size in FLOPS.items() if size == 10.0**power), "")
        return Told(unit) if unit else Told("", f"1e{power} FLOPs", "multiply it out")
    return Told(_found(its, _FLOPS)[0])


def _of_count(quantity: str, column: str) -> Told:
    its = words(column)
    if "per" in its and quantity in ("n_params", "n_params_total", "n_tokens", "unique_tokens", "steps"):
        return Told("", "a ratio", f"give the count itself, or say --unit {quantity}={next(iter(UNITS[quantity]))}")
    scale = _found(its, _COUNTS)[0] or (_LETTERS.get(its[-1], "") if len(its) > 1 else "")
    if power := _power(column):
        scale = next((u for u, size in SCALES.items() if size == 10.0**power), "")
        if not scale:
            return Told("", f"1e{power} of them", "multiply it out")
    noun = ""
    if quantity in _TOKENS:
        of_tokens = bool({"token", "tokens"} & set(its))
        # Of "tokens (sequences)" the end tells, of "train_sequences" any word.
        looked = [w for w in its if w not in _LETTERS][-1:] if of_tokens else its
        for unit, spellings in (("sequences", _SEQUENCES), ("steps", _STEPS)):
            if unit in UNITS[quantity] and set(looked) & set(spellings):
                noun = unit
        if not of_tokens and not noun and (asked := _asked(its, _ASKED_TOKENS)):
            return asked
    if quantity in ("n_params", "n_params_total") and (asked := _asked(its, _ASKED_PARAMS)):
        return asked
    if scale and noun:
        return Told("", f"{noun} in {scale}", f"say --unit {quantity}={noun}:NUMBER with the tokens that 1 stands for")
    return Told(scale or noun)


def _power(column: str) -> int | None:
    """9 of "tokens (1e9)", "params x10^9"."""
    match = re.search(r"(?:1e\+?|10\^|10\*\*)(\d{1,2})\b", column.lower())
    return int(match[1]) if match else None
