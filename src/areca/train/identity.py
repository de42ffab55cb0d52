"""What a run is: its identity as run.json records it, whether settings can be used, and what a directory holds."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from areca import runtime
from areca.config import RunConfig, check_seed, differences, from_dict, replace, to_dict
from areca.data.store import TokenStore
from areca.errors import CheckpointError, ConfigError, DataError, Diverged
from areca.files import read_json
from areca.footprint.regions import here
from areca.model.counts import attention_flops_per_token, count_params, exact_flops_per_token
from areca.pathways import schedules as schedules_of_stages
from areca.track import trackers
from areca.train import anneal, guard, schedules
from areca.train.checkpoint import Checkpoints
from areca.train.record import read_events, read_run_json, unstarted

if TYPE_CHECKING:
    from areca.model.layout import Layout

Resume = Literal["never", "must", "auto"]
# No bit depends on these: settings of [islands], and all such.
NO_BIT = ("count", "digest_every", "on", "chunk_mb", "flows", "deadline", "restart")
CARRIED = (*(f"islands.{name}:" for name in NO_BIT), "pipeline.stages:", "pipeline.schedule:")
SEGMENTS = 4  # of the backward pass over islands, where nothing else is said and there are as many layers


def with_islands(config: RunConfig) -> RunConfig:
    """The configuration with what it leaves open of its islands; over islands a layer keeps its input only."""
    i = config.islands
    if i.count < 1 or i.shards < 0:
        name, value = ("count", i.count) if i.count < 1 else ("shards", i.shards)
        raise ConfigError(f"islands.{name} is {value}; it must be at least {1 if name == 'count' else 0}.")
    shards = i.shards or (i.count if i.count > 1 else 0)
    if not shards:
        return config
    if i.lengths and i.segments not in (0, len(i.lengths)):
        raise ConfigError(
            f"islands.segments is {i.segments} and islands.lengths has {len(i.lengths)} segments, {list(i.lengths)}; "
            "leave one of the two out."
        )
    segments = i.segments or len(i.lengths) or min(SEGMENTS, config.model.n_layers)
    parallel = config.parallel if config.parallel.remat != "none" else replace(config.parallel, remat="block")
    return replace(config, islands=replace(i, shards=shards, segments=segments), parallel=parallel)


def with_pipeline(config: RunConfig) -> RunConfig:
    """The configuration of a run in stages: a layer keeps its input only. ConfigError for what no pipeline can be."""
    p = config.pipeline
    for name, value, least in (("stages", p.stages, 1), ("microbatches", p.microbatches, 0), ("layers", p.layers, 1)):
        if value < least:
            raise ConfigError(f"pipeline.{name} is {value}; it must be at least {least}.")
    i = config.islands
    if i.shards and (p.microbatches or p.stages > 1):
        stages = f"pipeline.stages is {p.stages}" if p.stages > 1 else f"pipeline.microbatches is {p.microbatches}"
        many = f"islands.count is {i.count}" if i.count > 1 else f"islands.shards is {i.shards}"
        out = "islands.count to 1 and islands.shards to 0" if i.count > 1 else "islands.shards to 0"
        back = "pipeline.stages to 1 and pipeline.microbatches to 0" if p.stages > 1 else "pipeline.microbatches to 0"
        raise ConfigError(f"{stages} and {many}, but a stage of a pipeline is on one island; set {out}, or {back}.")
    if p.stages > 1 and not p.microbatches:
        raise ConfigError(
            f"pipeline.stages is {p.stages} and pipeline.microbatches is not set; say into how many parts a batch is "
            f"cut, for example {4 * p.stages}: the numbers depend on it."
        )
    schedules_of_stages.check(p.schedule)
    if not p.microbatches:
        return config
    if i.on != "devices":
        raise ConfigError(
            f"islands.on is {i.on!r} and pipeline.microbatches is {p.microbatches}, but a pipeline's stages are "
            "devices of this process; set islands.on to devices."
        )
    if config.parallel.remat != "none":
        return config
    return replace(config, parallel=replace(config.parallel, remat="block"))


def with_documents(config: RunConfig, store: TokenStore) -> RunConfig:
    """The configuration with the token that ends the store's documents, where attention is masked by them."""
    mask, end = config.model.document_mask, config.model.document_end
    if end != -1 and not (mask and end == store.eod_id):
        wrong = f"the documents of {store.path} end with {store.eod_id}" if mask else "model.document_mask is false"
        raise ConfigError(f"model.document_end is {end} and {wrong}; leave it out, since it is read off the store.")
    return replace(config, model=replace(config.model, document_end=store.eod_id)) if mask else config


def as_before(config: RunConfig, run_dir: Path) -> RunConfig:
    """The configuration with the shards and segments that a run was begun with, where it leaves them open.

    Both are part of the numbers and follow from the number of islands if nothing is said, which may have changed since.
    """
    if not (run_dir / "run.json").exists():
        return config
    old = read_run_json(run_dir)["config"].get("islands") or {}
    given = {} if config.islands.shards else {"shards": old.get("shards", 0)}
    if not (config.islands.segments or config.islands.lengths):
        given |= {"segments": old.get("segments", 0), "lengths": tuple(old.get("lengths", ()))}
    return replace(config, islands=replace(config.islands, **given))


def check(config: RunConfig, store: TokenStore) -> None:
    """Raises ConfigError or DataError for settings that would stop the run later, when something is written."""
    from areca.train import noise
    from areca.train.optimizer import make_optimizer

    if config.data.context < 1:
        raise ConfigError(f"data.context is {config.data.context}; it must be at least 1.")
    config.model.check_context("data.context", config.data.context)
    check_seed(config.seed)
    check_seed(config.data.seed, "data.seed")
    schedules.check(config.schedule, config.batch, config.tokens, config.data.context)
    anneal.check(config, store)
    make_optimizer(config.optimizer, None)
    guard.check(config.guard)
    here()  # a place that is not known is refused before the run, not after it
    if trackers.check(config.track.to) and not config.track.project.strip():
        raise ConfigError("track.project is empty text; leave it out or give a name.")
    noise.check(config)
    if config.islands.shards:
        from areca.train.islands.setting import check as check_islands

        check_islands(config)
    if config.pipeline.microbatches:
        from areca.train.pipeline.run import check as check_pipeline

        check_pipeline(config)
    least = {"evaluation.batch": 1, "evaluation.every_tokens": 0, "evaluation.max_tokens": 0}
    least |= {"checkpoint.every_steps": 0, "checkpoint.keep_last": 1, "checkpoint.keep_every_steps": 0}
    for name, smallest in least.items():
        room, setting = name.split(".")
        if (value := getattr(getattr(config, room), setting)) < smallest:
            raise ConfigError(f"{name} is {value}; it must be at least {smallest}.")
    layout = layout_of(config)
    layout.check(config.model)
    for _, batch in config.batch.ramp:
        layout.check_batch("batch.ramp", batch)
    layout.check_batch("evaluation.batch", config.evaluation.batch)
    if layout.devices > 1:
        layout.mesh()  # says so if there are fewer devices
    if store.vocab_size > config.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size is {config.model.vocab_size} but the tokenizer of {store.path} has {store.vocab_size} "
            "tokens; set the model's to at least that."
        )
    if not any(c.heldout_tokens > 1 for c in store.corpora):
        raise DataError(
            f"{store.path} has no held-out text to evaluate on; build it with more documents or a larger --heldout."
        )


def layout_of(config: RunConfig) -> "Layout":
    """The mesh that a configuration asks for."""
    from areca.model.layout import Layout

    return Layout(config.parallel.data, config.parallel.model, config.parallel.remat)


def identify(config: RunConfig, store: TokenStore, threads: int, labels: dict[str, Any]) -> dict[str, Any]:
    """run.json: all that the numbers depend on."""
    n = count_params(config.model)
    settings = to_dict(config)
    return {
        "config": settings,
        "fingerprint": config.fingerprint(),
        "store": {
            "path": store.where,
            "fingerprint": store.fingerprint,
            "tokenizer_sha256": store.tokenizer_sha256,
            "corpora": [c.name for c in store.corpora],
        },
        "versions": runtime.versions(),
        "topology": runtime.topology(threads),
        "counts": {
            "n_params": n.non_embedding,
            "n_params_total": n.total,
            "exact_flops_per_token": exact_flops_per_token(config.model, config.data.context),
            "attention_flops_per_token": attention_flops_per_token(config.model, config.data.context),
        },
        "labels": labels,
        **anneal.describe(config),
    }


def look(run_dir: Path, wanted: dict[str, Any], resume: Resume, say: Callable[[str], None]) -> dict[str, Any] | None:
    """Compares the directory with what is asked; the result if the run is finished, None to start or go on."""
    if not (run_dir / "run.json").exists():
        killed = (run_dir / ".lock").exists()
        if resume == "must" and not killed:
            raise CheckpointError(f"{run_dir} holds no run to resume; leave out --resume to start one there.")
        if run_dir.exists() and not run_dir.is_dir():
            raise ConfigError(f"{run_dir} is a file; name a directory with --out.")
        if not unstarted(run_dir):
            if (run_dir / "run.json").exists():  # another process has begun one since the line above looked
                return look(run_dir, wanted, resume, say)
            raise ConfigError(f"{run_dir} is not empty and holds no run; choose another --out.")
        if resume != "never":
            say(f"{run_dir} holds no run yet{' (one was stopped before it began)' if killed else ''}: starting one.")
        return None
    if resume == "never":
        raise CheckpointError(f"{run_dir} holds a run already; go on with --resume or choose another --out.")
    old, mesh, carried, saves = _compared(run_dir, wanted, run_dir, "--out")
    moved = [f"{what} {d}" for what in ("versions", "topology") for d in differences(old[what], wanted[what])]
    if carried:
        moved = [d for d in moved if not d.startswith("topology devices:")]
    moved += mesh
    if not (run_dir / "result.json").exists():
        moved += [f"together {d}" for d in differences(_program(old), _program(wanted))]
    if moved:
        say(f"{run_dir} is resumed in another environment, so from here its bits may differ: {'; '.join(moved)}.")
    if not (run_dir / "result.json").exists():
        if carried:
            say(f"{run_dir} goes on with the same numbers on other {_where(carried)}: {'; '.join(carried)}.")
        if saves:
            say(f"{run_dir} saves by other settings from here: {'; '.join(saves)}.")
        return None
    say(f"{run_dir} is finished already.")
    return read_json(run_dir / "result.json")


def refuse_other(begun: Path, wanted: dict[str, Any], url: str) -> None:
    """CheckpointError unless a run's copy, whose run.json is in `begun`, can be gone on from with what is asked."""
    _compared(begun, wanted, url, "--copy-to")


def _compared(
    begun: Path, wanted: dict[str, Any], named: Path | str, option: str
) -> tuple[dict[str, Any], list[str], list[str], list[str]]:
    """run.json as it was, and what differs of the mesh, of islands and stages, and of saves, on which no bit depends.

    CheckpointError if anything else does.
    """
    old = read_run_json(begun)
    # Settings that there were not yet when the run began are as they are without being set.
    old["config"] = to_dict(from_dict(old["config"], RunConfig, f"{begun / 'run.json'}: config"))
    wanted = {**wanted, "config": {**wanted["config"], "data": {**wanted["config"]["data"]}}}
    # Where the store lies doesn't matter, what it holds does; so with the parameters that it began from (`start`).
    for one in (old, wanted):
        one["config"]["data"]["store"] = one["store"]["path"]
    places = ("data.store:", "track.")
    if old.get("start") and wanted.get("start"):
        places = (*places, "init_from:")
    changed = [d for d in differences(old["config"], wanted["config"]) if not d.startswith(places)]
    mesh = [d for d in changed if d.startswith("parallel.")]
    carried = [d for d in changed if d.startswith(CARRIED)]
    saves = [d for d in changed if d.startswith("checkpoint.")]  # no bit depends on when saves happen
    changed = [d for d in changed if d not in mesh + saves + carried]
    if changed:
        raise CheckpointError(
            f"{named} was trained with another configuration ({'; '.join(changed[:6])}"
            f"{'; ...' if len(changed) > 6 else ''}); resume with the same one or choose another {option}."
        )
    if old["store"]["fingerprint"] != wanted["store"]["fingerprint"]:
        raise CheckpointError(
            f"{named} was trained on a token store with other contents ({old['store']['fingerprint'][:12]}) than "
            f"{wanted['store']['path']} ({wanted['store']['fingerprint'][:12]}); resume with the store it had."
        )
    return old, mesh, carried, saves


def _where(carried: list[str]) -> str:
    return "islands" if carried[0].startswith("islands") else "stages"


def _program(identity: dict[str, Any]) -> dict[str, Any]:
    """How many runs the program of a run trains (`areca.train.together`)."""
    return {"runs": identity.get("together", {}).get("runs", 1)}


def diverged_before(run_dir: Path, config: RunConfig) -> Diverged | None:
    """The end of a run of this configuration that the directory tells of; trained again, it would end so again."""
    if not (run_dir / "run.json").exists() or (run_dir / "result.json").exists():
        return None
    events = read_events(run_dir)
    if not events or events[-1]["event"] != "not_finite":
        return None
    if read_run_json(run_dir)["fingerprint"] != config.fingerprint():
        return None
    with Checkpoints(run_dir / "checkpoints", writable=False) as checkpoints:
        return guard.diverged(config, events[-1], checkpoints.latest())


def parameters_sha256(params: Any) -> str:
    """SHA-256 over every parameter's path, shape, type and bytes, one at a time: equal digests mean equal bits."""
    import jax
    import numpy as np

    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        value = np.ascontiguousarray(_whole(leaf))
        digest.update(f"{jax.tree_util.keystr(path)} {np.shape(leaf)} {value.dtype}\n".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _whole(leaf: Any) -> Any:
    """A leaf on the host, put together from its pieces; unlike np.asarray, this keeps no copy with the leaf."""
    import numpy as np

    if len(getattr(leaf, "addressable_shards", ())) < 2:
        return np.asarray(leaf)
    whole = np.empty(leaf.shape, leaf.dtype)
    for shard in leaf.addressable_shards:
        whole[shard.index] = np.asarray(shard.data)
    return whole
