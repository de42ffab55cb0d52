"""How a law's rows count N and C, told by what their columns are called and by the numbers.

N is of all parameters or of those without embeddings. C is exact training FLOPs (every matrix product), 6 N D, or what
a table has in a way of its own, of which k = C / (N D) is known. Fits, plans and reports ask here, so that a law is
given N as its rows count it, and a run's C stands beside theirs in one count.
"""

import re
from collections.abc import Sequence
from statistics import median
from typing import Literal

NCount = Literal["non-embedding", "total"]
FlopsCount = Literal["exact", "6nd", "table"]
Row = tuple[float, float, float]  # N, D and C of a run

SIX = 1e-3  # relative: C that is 6 N D, as printed with three digits or more
EXACT = "exact FLOPs"  # beside the name of a column whose numbers say so
SIX_ND = ("6 N D", "flops_6nd (6 N D)")  # what the column is called where C is derived, or of our own runs
OWN = re.compile(r"n_params( \(.*\))?")  # our name, which is of parameters without embeddings
WITHOUT = re.compile("non?emb|without|excl")
WITH = re.compile("total|allparam|(with|incl|including|includes)(the)?emb")
WORDS = {"non-embedding": "parameters without embeddings", "total": "all parameters"}


def n_count(column: str) -> NCount:
    """What N counts by its column's name, such as "total_params (M)"; without embeddings where that does not say."""
    words = _letters(column)
    return "total" if WITH.search(words) and not WITHOUT.search(words) else "non-embedding"


def says_n_count(column: str) -> bool:
    """Whether the name tells what N counts. None at all ("") is of rows that were not read from a table."""
    words = _letters(column)
    return not column or bool(OWN.fullmatch(column) or WITHOUT.search(words) or WITH.search(words))


def flops_count(column: str, rows: Sequence[Row]) -> FlopsCount:
    """How rows count C, by what the column was called or how it was derived, and by the numbers."""
    if "exact" in column.lower():
        return "exact"
    if rows:
        six = all(abs(c / (6 * n * d) - 1) < SIX for n, d, c in rows)
        return "6nd" if six else "table" if column else "exact"
    return "6nd" if column in SIX_ND else "table" if column else "exact"


def flops_per_nd(rows: Sequence[Row]) -> float:
    """k, the median of C / (N D): 6 where there are no rows."""
    return float(median(c / (n * d) for n, d, c in rows)) if rows else 6.0


def flops_as(count: FlopsCount, n_params: float, n_tokens: float, exact: float, k: float = 6.0) -> float:
    """C of a run in that count: its exact FLOPs, 6 N D, or k N D of rows that have a way of their own."""
    return exact if count == "exact" else (6.0 if count == "6nd" else k) * n_params * n_tokens


def _letters(column: str) -> str:
    return re.sub("[^a-z]", "", column.lower())
