"""Runs as TensorBoard event files: a directory with `*tfevents*` is a run, read by tensorboard's own reader.

Of each scalar the last value is taken, of counts of tokens, FLOPs and steps the largest. A run's settings come from
the hparams that were logged and from a file beside the events: hparams.yaml, config.yaml, hparams.json, config.json or
run.json.
"""

from pathlib import Path
from typing import Any

from areca.errors import DataError, install
from areca.laws.reading.columns import usual_names
from areca.laws.reading.formats import Row, Table
from areca.laws.reading.trackers import read_settings

EVENTS = "*tfevents*"
SETTINGS = ("hparams.yaml", "config.yaml", "hparams.json", "config.json", "run.json")
PARTS = ("train", "training", "eval", "val", "valid", "validation", "test")  # directories that are parts of one run
COUNTS = ("n_tokens", "flops", "steps")


def holds_events(path: Path) -> bool:
    """True for an event file and for a directory with one in it or below."""
    return any(True for _ in path.rglob(EVENTS)) if path.is_dir() else "tfevents" in path.name


def read_tensorboard(path: Path) -> Table:
    """A row for each run; DataError where the reader is not installed or no run has a scalar."""
    files = sorted(path.rglob(EVENTS)) if path.is_dir() else [path]
    runs: dict[Path, dict[str, Any]] = {}
    for directory in dict.fromkeys(p.parent for p in files):
        part = directory.name if directory.name.lower() in PARTS and directory != path else ""
        run = directory.parent if part else directory
        scalars = _scalars(directory if path.is_dir() else path)
        cells = runs.setdefault(run, {})
        for tag, value in scalars.items():
            cells[f"{part}/{tag}" if part and tag != "step" and not tag.startswith(f"{part}/") else tag] = value
    rows = []
    for run, cells in runs.items():
        if not cells:
            continue
        name = str(run.relative_to(path)) if path.is_dir() and run != path else run.name
        rows.append(Row(f"{run}", _settings(run) | cells, name))
    if not rows:
        raise DataError(f"{path} has event files of TensorBoard, but no scalar in them; log the loss as one.")
    columns = list(dict.fromkeys(name for row in rows for name in row.cells))
    return Table(path, columns, rows)


def _scalars(path: Path) -> dict[str, Any]:
    """The hparams that were logged, {tag: last value, or the largest of a count}, and the last step as "step"."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.plugins.hparams import metadata
        from tensorboard.util import tensor_util
    except ImportError:
        raise DataError(
            f"{path} holds event files of TensorBoard, whose reader is not installed; install it with "
            f"{install('track')}, or export the runs as CSV."
        ) from None
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 1})  # every scalar, the last tensor
    events.Reload()
    tags = events.Tags()
    counts = {tag for quantity in COUNTS for tag in usual_names(quantity, tags["scalars"])}
    cells: dict[str, Any] = {}
    last = 0
    if metadata.SESSION_START_INFO_TAG in tags["tensors"]:
        content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        hparams = metadata.parse_session_start_info_plugin_data(content).hparams
        cells |= {name: getattr(value, value.WhichOneof("kind") or "string_value") for name, value in hparams.items()}
    for tag in tags["scalars"]:
        values = events.Scalars(tag)
        cells[tag] = max(v.value for v in values) if tag in counts else values[-1].value
        last = max(last, values[-1].step)
    for tag in tags["tensors"]:  # TensorFlow 2 writes a scalar as a tensor without a dimension
        event = events.Tensors(tag)[-1]
        array = tensor_util.make_ndarray(event.tensor_proto)
        if not tag.startswith("_hparams_") and array.ndim == 0 and array.dtype.kind in "fiu":
            cells[tag], last = float(array), max(last, event.step)
    return cells | ({"step": last} if last else {})


def _settings(run: Path) -> dict[str, Any]:
    """The settings in the first file of `SETTINGS` that is there."""
    for name in SETTINGS:
        if (run / name).is_file():
            return read_settings(run / name)
    return {}
