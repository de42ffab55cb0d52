"""A trained model from its run directory, and text from it.

Reads run.json, the checkpoint that the run's record names (proven by digest before it is loaded) and the tokenizer of
the token store. Changes nothing.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areca import runtime
from areca.config import RunConfig, check_seed, from_dict
from areca.data.away import tokenizer_of
from areca.data.store import TokenStore
from areca.data.tokenizer import Tokenizer, load_tokenizer
from areca.data.written import Written
from areca.errors import CheckpointError, ConfigError, DataError
from areca.files import sha256_file
from areca.footprint.planned import per_1000_tokens
from areca.footprint.regions import here
from areca.footprint.sessions import Watch
from areca.model.decode import MOST
from areca.model.decoder import Decoder
from areca.model.lanes import Batch, Entry, Piece, check_prompts, run
from areca.model.prepared import prepare
from areca.model.sampling import Sampling
from areca.remote.place import is_url
from areca.train.away.copies import local_run
from areca.train.checkpoint import Checkpoints
from areca.train.models import TOKENIZER, is_model, read_model
from areca.train.record import read_run_json

STREAMED = 4  # tokens drawn between two stretches of text that is shown as it is made


@dataclass(frozen=True)
class TrainedModel:
    """A run's model at one step, or an imported one, with the tokenizer of its text."""

    run_dir: Path
    config: RunConfig
    step: int
    params: Decoder
    tokenizer: Tokenizer
    tokenizer_path: Path
    store_place: str | None  # directory or URL of its token store; None: imported, without the text it was trained on
    store_fingerprint: str | None

    @functools.cached_property
    def store(self) -> TokenStore | None:
        """The text it was trained on, fetched at the first use if it lies behind a URL."""
        return None if self.store_place is None else TokenStore.open(self.store_place)


def load_model(run_dir: Path | str, step: int | None = None, store: Path | str | None = None) -> TrainedModel:
    """The model of a run or model directory, from its latest recorded checkpoint or that of `step`.

    Args:
        store: the token store, if it does not lie any more where run.json says.

    Raises:
        CheckpointError: no run, no such checkpoint, or one that is damaged.
        DataError: the token store is gone, or its tokenizer is not the one the run was trained with.
    """
    run_dir = local_run(run_dir, step)
    if is_model(run_dir):
        return _imported(run_dir, step, store)
    run = read_run_json(run_dir)
    try:
        config = from_dict(run["config"], RunConfig, "config")
        place, digest = str(store or run["store"]["path"]), run["store"]["tokenizer_sha256"]
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{run_dir / 'run.json'} is not this version's ({error}); name another run.") from None
    if store is None and not is_url(place) and not Path(place).exists():
        raise DataError(f"the token store {place} of {run_dir} is gone; say where it is now with --store.")
    path, fingerprint = tokenizer_of(place)
    if sha256_file(path) != digest:
        raise DataError(f"{path} is not the tokenizer that {run_dir} was trained with; name its store.")
    params, step = _parameters(run_dir, config, step)
    return TrainedModel(run_dir, config, step, params, load_tokenizer(path), path, place, fingerprint)


def _imported(directory: Path, step: int | None, store: Path | str | None) -> TrainedModel:
    config, _ = read_model(directory)
    path = directory / TOKENIZER
    if store is not None:
        raise ConfigError(f"--store is {store}, but {directory} is an imported model, which has its own tokenizer.")
    if not path.exists():
        raise DataError(
            f"{directory} has no {TOKENIZER} (what it came with can't be used here), so it can't read text."
        )
    params, step = _parameters(directory, config, step)
    return TrainedModel(directory, config, step, params, load_tokenizer(path), path, None, None)


def _parameters(run_dir: Path, config: RunConfig, step: int | None) -> tuple[Decoder, int]:
    import jax

    from areca.train.step import init_state

    with Checkpoints(run_dir / "checkpoints", writable=False) as checkpoints:
        entry = checkpoints.latest() if step is None else checkpoints.entry(step)
        if entry is None:
            raise CheckpointError(
                f"{run_dir} has no checkpoint: none was saved yet, or they were removed; "
                "go on with `areca train --resume`, or train it anew."
            )
        example = jax.eval_shape(lambda: init_state(config.model, config.optimizer, config.seed))
        state, _ = checkpoints.restore(entry, replace(example, optimizer=None), part=True)
    return state.params, entry.step


def sample(
    run_dir: Path | str,
    prompts: Sequence[str],
    *,
    tokens: int = 64,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int = 0,
    step: int | None = None,
    store: Path | str | None = None,
) -> list[dict[str, Any]]:
    """Continues each prompt with a run's model; an empty prompt is the beginning of a document.

    Returns `{"prompt", "text", "tokens", "ended"}` for each: the continuation alone, how many tokens it has, and
    whether the model ended the document. Bytes that are no UTF-8 (a character cut in two) read as U+FFFD. Texts longer
    than the training context go on from their last half context. Raises what `load_model` and `lanes.check_prompts` do.
    """
    return sample_and_cost(run_dir, prompts, tokens, Sampling(temperature, top_k, top_p), seed, step, store)[0]


def sample_and_cost(
    run_dir: Path | str,
    prompts: Sequence[str],
    tokens: int,
    sampling: Sampling,
    seed: int = 0,
    step: int | None = None,
    store: Path | str | None = None,
    *,
    stops: Sequence[str] = (),
    begin: Callable[[list[str]], None] | None = None,
    write: Callable[[int, str], None] | None = None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What `sample` returns, and what it took: energy and carbon, and both per 1,000 tokens of the continuations.

    From the first prompt read to the last token drawn; loading the model and compiling are not in it, as they are not
    in what a thousand tokens more would take.

    Args:
        stops: a text ends before the first of these strings.
        begin: called with the prompts as they read, before the first token.
        write: called with a text's place and each stretch of it as it is made, whole characters only.
    """
    sampling.check()
    check_seed(seed)
    place = here()
    model = load_model(run_dir, step, store)
    tokenizer, context, config = model.tokenizer, model.config.data.context, model.config.model
    starts = [tokenizer.encode(p) or [tokenizer.eod_id] for p in prompts]
    vocabulary = min(tokenizer.vocab_size, config.vocab_size)
    check_prompts(starts, tokens, context, vocabulary)
    batch = Batch(
        config, prepare(config, model.params, vocabulary), lanes=max(1, len(starts)), context=context,
        length=max(map(len, starts), default=1) + tokens, stop=tokenizer.eod_id,
    )  # fmt: skip
    batch.compile([len(s) for s in starts])
    shown = [_shown(tokenizer, start) for start in starts]
    texts = [Written(tokenizer, stops) for _ in starts]
    if begin is not None:
        begin(shown)
    ended = [False] * len(starts)

    def take(i: int, piece: Piece) -> bool:
        new = texts[i].add(piece.tokens)
        if piece.ended:
            ended[i] = piece.tokens[-1:] == [tokenizer.eod_id]
            new += texts[i].finish()
        if new and write is not None:
            write(i, new)
        return not texts[i].stopped

    cores = runtime.available_cores()
    with Watch(runtime.topology(cores), 1, cores) as watch:
        entries = [Entry(s, tokens, sampling, seed, i) for i, s in enumerate(starts)]
        run(batch, entries if tokens else [], take, MOST if write is None else STREAMED)
    cost = watch.footprint(place)
    cost |= per_1000_tokens(cost, max(1, sum(t.tokens for t in texts)))
    return [
        {"prompt": prompt, "text": text.text, "tokens": text.tokens, "ended": end or text.stopped}
        for prompt, text, end in zip(shown, texts, ended, strict=True)
    ], cost


def _shown(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode_bytes(ids).decode("utf-8", "replace")
