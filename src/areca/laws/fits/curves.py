"""Training curves: the loss along each run, from run directories or from a table with a column that names the run."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from areca.errors import DataError
from areca.files import read_json, read_jsonl
from areca.laws.reading.tables import FlopsKind, run_directories

RUN_COLUMNS = ("run", "run_id", "name")
WINDOW = 0.1  # of ln D to both sides: where the line that smooths a curve is fitted
LEAST_POINTS = 8  # of a run's curve


@dataclass(frozen=True)
class Curve:
    """One run: its size, and its training loss (nats per token) as tokens and FLOPs went by."""

    name: str
    n_params: float  # without embeddings
    n_tokens: np.ndarray  # [k] rising
    flops: np.ndarray  # [k] rising
    loss: np.ndarray  # [k]

    def __post_init__(self) -> None:
        for what in ("n_tokens", "flops", "loss"):
            values = getattr(self, what)
            bad = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
            if bad.size:
                raise DataError(
                    f"{what} is {values[bad[0]]} at point {bad[0] + 1} of the run {self.name}; it must be positive."
                )
        if not (np.diff(self.n_tokens) > 0).all():
            raise DataError(f"the tokens of the run {self.name} do not rise along its curve; sort it, one row a step.")
        if len(self.loss) < LEAST_POINTS:
            raise DataError(
                f"the run {self.name} has {len(self.loss)} points; a curve needs at least {LEAST_POINTS} of them."
            )

    def smoothed(self) -> np.ndarray:
        """[k]: ln L of the line in ln D fitted to the points within 10% of each point's tokens (`WINDOW`).

        A line and not a mean, which would lag behind a falling curve at its ends.
        """
        x, y = np.log(self.n_tokens), np.log(self.loss)
        start = np.searchsorted(x, x - WINDOW, side="left")
        stop = np.searchsorted(x, x + WINDOW, side="right")
        centre = x.mean()
        sums = [np.concatenate([[0.0], np.cumsum(v)]) for v in (np.ones_like(x), x - centre, y, (x - centre) ** 2,
                                                               (x - centre) * y)]  # fmt: skip
        n, sx, sy, sxx, sxy = (s[stop] - s[start] for s in sums)
        spread = sxx - sx * sx / n
        slope = np.where(spread > 1e-12, (sxy - sx * sy / n) / np.maximum(spread, 1e-12), 0.0)
        return sy / n + slope * (x - centre - sx / n)


def read_curves(paths: Iterable[Path | str], *, flops_kind: FlopsKind = "exact") -> list[Curve]:
    """The curves of every path: run directories (`metrics.jsonl` beside `result.json`), or a CSV, TSV, JSONL or Parquet
    table of columns run, n_params, n_tokens, loss and, if there is one, flops (6 N D otherwise)."""
    found: list[Curve] = []
    for path in map(Path, paths):
        found += _runs(path, flops_kind) if path.is_dir() else _table(path)
    if not found:
        raise DataError("there are no training curves: give run directories, a ladder or a table with a column run.")
    return found


def _runs(directory: Path, kind: FlopsKind) -> list[Curve]:
    runs, _ = run_directories(directory)
    if not runs:
        raise DataError(f"{directory} holds no finished run; train first, or give a table with a column run.")
    key = "flops_exact" if kind == "exact" else "flops_6nd"
    curves = []
    for path, _ in runs:
        result = read_json(path / "result.json")
        try:
            n, per_token = float(result["n_params"]), float(result[key]) / float(result["n_tokens"])
        except (KeyError, TypeError, ValueError):
            raise DataError(
                f"{path / 'result.json'} has no n_params, n_tokens or {key}; train the run again."
            ) from None
        if not (path / "metrics.jsonl").is_file():
            raise DataError(f"{path} has no metrics.jsonl, so its curve is not known; leave it out.")
        rows = [r for r in read_jsonl(path / "metrics.jsonl") if r.get("loss") is not None and r.get("tokens")]
        tokens = np.array([r["tokens"] for r in rows], dtype=np.float64)
        curves.append(Curve(path.name, n, tokens, tokens * per_token, np.array([r["loss"] for r in rows], np.float64)))
    return curves


def _table(path: Path) -> list[Curve]:
    if not path.exists():
        raise DataError(f"{path} does not exist; give run directories, a ladder or a table with a column run.")
    table = _read(path)
    name = next((c for c in RUN_COLUMNS if c in table), None)
    if name is None:
        raise DataError(f"{path} has no column run, which says which rows are one curve; it has {', '.join(table)}.")
    columns: dict[str, np.ndarray] = {}
    for wanted in ("n_params", "n_tokens", "loss", "flops"):
        if wanted not in table:
            if wanted == "flops":
                continue
            raise DataError(f"{path} has no column {wanted!r}; it has {', '.join(table)}.")
        try:
            columns[wanted] = np.array(table[wanted], dtype=np.float64)
        except (TypeError, ValueError):
            raise DataError(f"the column {wanted} of {path} is not of numbers only.") from None
    columns.setdefault("flops", 6 * columns["n_params"] * columns["n_tokens"])
    names = np.array([str(v) for v in table[name]])
    curves = []
    for run in dict.fromkeys(names.tolist()):
        rows = np.flatnonzero(names == run)
        sizes = columns["n_params"][rows]
        if not (np.isfinite(sizes).all() and (sizes > 0).all() and np.ptp(sizes) <= 1e-9 * sizes[0]):
            raise DataError(f"n_params of the run {run} in {path} is not one positive number for all of its rows.")
        order = rows[np.argsort(columns["n_tokens"][rows], kind="stable")]
        curves.append(Curve(run, float(sizes[0]), *(columns[k][order] for k in ("n_tokens", "flops", "loss"))))
    return curves


def _read(path: Path) -> dict[str, list[Any]]:
    """Column -> values."""
    import pyarrow
    from pyarrow import csv, json, parquet

    suffix = path.suffix.lower()
    try:
        if suffix in (".csv", ".tsv"):
            table = csv.read_csv(path, parse_options=csv.ParseOptions(delimiter="\t" if suffix == ".tsv" else ","))
        elif suffix == ".jsonl":
            table = json.read_json(path)
        elif suffix == ".parquet":
            table = parquet.read_table(path)
        else:
            raise DataError(
                f"{path} is no table of curves; give a CSV, TSV, JSONL or Parquet file, or run directories."
            )
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(f"{path} can't be read as {suffix[1:]}: {str(error).splitlines()[0]}.") from None
    return table.to_pydict()


__all__ = ["Curve", "read_curves"]
