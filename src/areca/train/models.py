"""Models without a run, and runs that start from parameters that are there already.

A model directory is what `areca import` makes, to generate from and to start runs from:

    model.json      its configuration as a run would have it, the digest of its parameters, where it is from
    tokenizer.json  unless the tokenizer that it came with can't be used here
    checkpoints/    one checkpoint of the parameters, without an optimizer's state, proven by digest like any

`init_from` of a configuration names a model directory or a run: their parameters are the run's first ones, and the
optimizer and all counts start anew. run.json then says which they were (`start`), so that a run which is resumed or
goes back to its start does so to the same bits, or refuses.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areca.config import ModelConfig, RunConfig, differences, from_dict, read_table, to_dict
from areca.data.store import TokenStore
from areca.data.tokenizer import load_tokenizer
from areca.errors import CheckpointError, ConfigError
from areca.files import read_json, write_atomic, write_json
from areca.remote.place import is_url
from areca.train.away.copies import local_run
from areca.train.checkpoint import Checkpoints
from areca.train.checkpoint_files import Entry
from areca.train.identity import parameters_sha256
from areca.train.record import read_run_json

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from areca.model.layout import Layout
    from areca.model.parameters import Decoder
    from areca.train.step import TrainState

MODEL, TOKENIZER, CHECKPOINTS = "model.json", "tokenizer.json", "checkpoints"


def write_model(
    directory: Path,
    config: RunConfig,
    params: "Decoder",
    *,
    step: int,
    tokenizer: bytes | None,
    origin: dict[str, Any],
) -> dict[str, Any]:
    """Makes an empty directory a model's and returns the content of model.json; `origin` says where it is from."""
    import numpy as np

    from areca.train.step import TrainState

    meta = {
        "config": to_dict(replace(config, model=config.model.resolved())),
        "step": step,
        "parameters_sha256": parameters_sha256(params),
        "origin": origin,
    }
    with Checkpoints(directory / CHECKPOINTS) as checkpoints:
        checkpoints.save(step, TrainState(np.int32(step), params, None), {"step": step})  # pyright: ignore[reportArgumentType]
    if tokenizer is not None:
        write_atomic(directory / TOKENIZER, tokenizer)
    write_json(directory / MODEL, meta)
    return meta


def is_model(directory: Path | str) -> bool:
    """Whether it is a model directory."""
    return (Path(directory) / MODEL).is_file()


def read_model(directory: Path | str) -> tuple[RunConfig, dict[str, Any]]:
    """Configuration and content of model.json; CheckpointError if it is not one that `write_model` makes."""
    path = Path(directory) / MODEL
    meta = read_json(path)
    try:
        return from_dict(meta["config"], RunConfig, "config"), meta
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{path} does not describe a model of this version ({error}); import it again.") from None


# --- runs that start from parameters


def config_table(path: Path | str, run_dir: Path | str, init_from: str | None = None) -> Any:
    """The values in a configuration's file, not checked, with `init_from` if it is given.

    Without a `model` it has the one that it starts from, or that its run in `run_dir` was begun with.
    """
    values = read_table(path)
    if isinstance(values, dict):
        if init_from is not None:
            values["init_from"] = init_from
        if "model" not in values and isinstance(values.get("init_from"), str) and values["init_from"]:
            begun = Path(run_dir) if (Path(run_dir) / "run.json").exists() else local_run(values["init_from"])
            values["model"] = to_dict(_model_of(begun))
    return values


def start_of(config: RunConfig, store: TokenStore, run_dir: Path) -> dict[str, Any] | None:
    """What run.json says of the parameters that the run starts from; None where they are drawn from the seed.

    A run that was begun keeps those it was begun with, wherever they lie now. ConfigError if the model or the store's
    tokenizer is not theirs, CheckpointError if there are none, or others than before.
    """
    if not config.init_from:
        return None
    remote = is_url(config.init_from)
    where = config.init_from if remote else str(Path(config.init_from).absolute())
    old = read_run_json(run_dir).get("start") if (run_dir / "run.json").exists() else None
    if old and (old["path"] == where or not (remote or Path(where).exists())):
        return old  # not needed unless the run goes back to its start
    path = local_run(where)
    _check_same(config, path)
    _check_tokenizer(config, path, store)
    with _checkpoints(path) as checkpoints:
        entries = checkpoints.entries()
    if not entries:
        raise CheckpointError(f"{path} has no checkpoint to start from; name another with init_from.")
    if old and not any(e.digest == old["digest"] for e in entries):
        raise CheckpointError(
            f"{run_dir} was begun from step {old['step']} of {old['path']}, which {path} does not have; resume with "
            "the init_from that it had."
        )
    return {**old, "path": where} if old else _start(where, entries[-1])


def first_state(
    config: RunConfig, start: dict[str, Any] | None, abstract: "TrainState", layout: "Layout", mesh: "Mesh | None"
) -> "TrainState":
    """The state before the first step: drawn from the seed, or with the parameters of `start` (`start_of`).

    No optimizer's first state depends on the parameters' values. CheckpointError if they are not there any more, or
    not the same.
    """
    from areca.train import step

    state = step.first_state(config.model, config.optimizer, config.seed, layout, mesh)
    if start is None:
        return state
    with _checkpoints(local_run(start["path"], start["step"])) as checkpoints:
        entry = checkpoints.entry(start["step"])
        if entry.digest != start["digest"]:
            raise CheckpointError(
                f"step {entry.step} of {start['path']} is not any more what the run was begun from; restore it, or "
                "start the run again in a new directory."
            )
        example = replace(abstract, step=None, optimizer=None)
        return replace(state, params=checkpoints.restore(entry, example, part=True)[0].params)


def _start(where: str, entry: Entry) -> dict[str, Any]:
    return {"path": where, "step": entry.step, "digest": entry.digest}


def _checkpoints(path: Path) -> Checkpoints:
    if not (path / CHECKPOINTS).is_dir():
        raise CheckpointError(
            f"{path} is neither a run nor an imported model, so nothing can start from it; bring a Hugging Face "
            "directory in with `areca import hf` first."
        )
    return Checkpoints(path / CHECKPOINTS, writable=False)


def _model_of(path: Path) -> ModelConfig:
    if is_model(path):
        return read_model(path)[0].model
    _checkpoints(path).close()
    return from_dict(read_run_json(path)["config"]["model"], ModelConfig, f"{path / 'run.json'}: model").resolved()


def _check_same(config: RunConfig, path: Path) -> None:
    """ConfigError unless `config.model` is the model at `path`; base widths may differ if nothing depends on them, and
    so may whether documents are masked."""
    there, here = _model_of(path).resolved(), config.model.resolved()
    if there.width_ratio == here.width_ratio:
        there = replace(there, base_width=here.base_width)
    there = replace(there, document_mask=here.document_mask, document_end=here.document_end)  # of training alone
    if found := differences(to_dict(there), to_dict(here), "model."):
        raise ConfigError(
            f"init_from is {config.init_from}, whose model is another ({'; '.join(found[:4])}); leave [model] out to "
            "take its."
        )


def _check_tokenizer(config: RunConfig, path: Path, store: TokenStore) -> None:
    """ConfigError if tokens of the store are not those of the model at `path`; one without a tokenizer can't tell."""
    if not is_model(path):
        theirs, where = read_run_json(path)["store"]["tokenizer_sha256"], "the tokenizer.json of its token store"
    elif (path / TOKENIZER).exists():
        theirs, where = load_tokenizer(path / TOKENIZER).sha256, str(path / TOKENIZER)
    else:
        return
    if theirs != load_tokenizer(store.tokenizer_path).sha256:
        raise ConfigError(
            f"init_from is {config.init_from}, whose tokens are not those of {store.path}; build the store with "
            f"`areca corpus build --tokenizer` and {where}."
        )
