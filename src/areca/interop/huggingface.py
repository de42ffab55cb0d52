"""`areca export hf` and `areca import hf`: a model as a directory that transformers loads, and back.

    config.json             CohereForCausalLM with our shape (`areca.interop.cohere`)
    model.safetensors       parameters in float32
    generation_config.json  where text ends
    tokenizer.json          ours, byte for byte
    tokenizer_config.json   how transformers is to use it
    areca.json              what the way back needs beside them, and the SHA-256 of all of them

Without areca.json a directory is anyone's: then its config.json says what the model is.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import areca
from areca.config import DataConfig, RunConfig, from_dict, to_dict
from areca.data.tokenizer import load_tokenizer
from areca.errors import ConfigError, DataError
from areca.files import read_json, sha256_file, write_atomic, write_json
from areca.folders import appear, building
from areca.interop import cohere, tensors
from areca.remote.place import is_url
from areca.train.identity import parameters_sha256
from areca.train.models import write_model
from areca.train.restore import TrainedModel, load_model

if TYPE_CHECKING:
    from areca.model.parameters import Decoder

NOTE, CONFIG, GENERATION = "areca.json", "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
FORMAT, VERSION = "areca export", 1


def export_hf(
    source: Path | str, out: Path | str, step: int | None = None, store: Path | str | None = None
) -> dict[str, Any]:
    """Writes the model of a run, an imported model or a single checkpoint (RUN/checkpoints/STEP) for transformers.

    Args:
        step: of the checkpoint; the latest if None.
        store: the token store, if it does not lie any more where run.json says.

    Returns:
        The content of areca.json.

    Raises:
        ConfigError: `out` exists, or the model is one that CohereForCausalLM can't be.
        CheckpointError, DataError: as of `load_model`; DataError also for parameters that are not finite.
    """
    out = _free(out)
    run_dir, step = _checkpoint(source, step)
    trained = load_model(run_dir, step, store)
    cohere.check(trained.config.model)
    found = cohere.to_tensors(trained.config.model.resolved(), trained.params)
    _check_finite(found, run_dir)
    with building(out) as directory:
        _write_weights(directory / tensors.WEIGHTS, found)
        _write_configs(directory, trained)
        note = _note(trained, {p.name: sha256_file(p) for p in sorted(directory.iterdir())})
        write_json(directory / NOTE, note)
        _free(out)
        appear(directory, out)
    return note


def _free(out: Path | str) -> Path:
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists already; choose another --out or remove it.")
    return out


def _checkpoint(source: Path | str, step: int | None) -> tuple[str, int | None]:
    """The run of a checkpoint's directory or URL and its step, or what was given."""
    run, _, last = str(source if is_url(source) else Path(source)).rstrip("/").rpartition("/")
    run, _, named = run.rpartition("/") if "/" in run else (".", "", run)
    if named != "checkpoints" or not last.isdigit():
        return str(source), step
    if step is not None and step != int(last):
        raise ConfigError(f"--step is {step}, and {source} is the checkpoint of step {last}; leave one out.")
    return run, int(last)


def _check_finite(found: dict[str, Any], source: Path | str) -> None:
    import numpy as np

    for name, value in found.items():
        if not np.isfinite(value).all():
            raise DataError(f"{source} has values that are not finite in {name}: the run diverged; take another step.")


def _write_weights(path: Path, found: dict[str, Any]) -> None:
    """OSError where the system refuses, which the library says in words alone."""
    import os
    import re

    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(found, path, metadata={"format": "pt"})  # without it older versions of transformers refuse the file
    except SafetensorError as error:
        if (number := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None
    with path.open("rb") as f:
        os.fsync(f.fileno())
    path.chmod(0o644)


def _write_configs(directory: Path, trained: TrainedModel) -> None:
    config, tokenizer = trained.config, trained.tokenizer
    eod, context = tokenizer.eod_id, config.data.context
    special = {"bos_token_id": eod, "eos_token_id": eod, "pad_token_id": eod}
    spare = list(range(tokenizer.vocab_size, config.model.vocab_size))  # rows of the embedding that no token has
    write_json(directory / CONFIG, cohere.to_config(config.model, context, eod))
    write_json(directory / GENERATION, special | ({"suppress_tokens": spare} if spare else {}))
    write_atomic(directory / TOKENIZER, trained.tokenizer_path.read_bytes())
    write_json(
        directory / TOKENIZER_CONFIG,
        {
            # Without a class, model_type cohere picks one that changes text.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.eod,
            "eos_token": tokenizer.eod,
            "pad_token": tokenizer.eod,
            "model_max_length": context,
            "model_input_names": ["input_ids", "attention_mask"],  # transformers 4 adds token types, which are refused
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": True,  # text that spells "[eod]" is text, as it is here
        },
    )


def _note(trained: TrainedModel, files: dict[str, str]) -> dict[str, Any]:
    """areca.json. The place of the token store stays out of it: this is published."""
    config = replace(trained.config, model=trained.config.model.resolved(), init_from="")
    config = replace(config, data=replace(config.data, store=""))
    return {
        "format": FORMAT,
        "version": VERSION,
        "areca": areca.__version__,
        "config": to_dict(config),
        "step": trained.step,
        "parameters_sha256": parameters_sha256(trained.params),
        "store": {"fingerprint": trained.store_fingerprint} if trained.store_fingerprint else None,
        "files": files,
    }


# --- the way back


def import_hf(source: Path | str, out: Path | str, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Makes a model directory (`areca.train.models`) of a CohereForCausalLM; returns the content of its model.json.

    What `export_hf` wrote comes back to the bit. Of another directory, float32, bfloat16 and float16 become float32
    exactly, and a logit scale other than D^-1/2 goes into the last norm, to rounding. `say` hears of that, and of a
    tokenizer that can't be used here.

    Raises:
        ConfigError: `out` exists.
        DataError: the directory is missing or damaged, holds another model, or was changed since it was exported.
    """
    out, source = _free(out), Path(source)
    if not source.is_dir():
        raise DataError(
            f"there is no directory {source}; download a model first (`hf download OWNER/NAME --local-dir DIR`)."
        )
    if not (source / CONFIG).is_file():
        raise DataError(f"{source} has no {CONFIG}, so it is no directory of a Hugging Face model.")
    tensors.weight_files(source)  # says first if there are no weights to read
    note = _exported(source)
    if note is None:
        model, context, factor = cohere.from_config(read_json(source / CONFIG), str(source / CONFIG))
        config, step = RunConfig(model, DataConfig(store="", context=context), tokens=0), 0
    else:
        config, step, factor = _run_config(note, source), note["step"], 1.0
    params = _read(source, config, factor)
    if note is not None and parameters_sha256(params) != note["parameters_sha256"]:
        raise DataError(f"{source} has other parameters than {NOTE} says; export the run again.")
    if factor != 1:
        say(f"logits of {source} are scaled by {factor:.6g} / sqrt(D), which is in the last norm now, to rounding.")
    origin = {
        "kind": "huggingface",
        "path": str(source.absolute()),
        "files": {name: sha256_file(source / name) for name in (CONFIG, *tensors.weight_files(source))},
        "norm_scaled_by": factor,
        "exported": None if note is None else {k: note.get(k) for k in ("areca", "store")},
    }
    with building(out) as directory:
        tokenizer = _tokenizer(source, config, say)
        meta = write_model(directory, config, params, step=step, tokenizer=tokenizer, origin=origin)
        _free(out)
        appear(directory, out)
    return meta


def _exported(source: Path) -> dict[str, Any] | None:
    """areca.json of a directory that is as it was exported, None if there is none; DataError if a file was changed."""
    path = source / NOTE
    if not path.exists():
        return None
    note = read_json(path)
    if not isinstance(note, dict) or note.get("format") != FORMAT or not isinstance(note.get("files"), dict):
        raise DataError(f"{path} is not what `areca export` writes; remove it to import the directory by its {CONFIG}.")
    if note.get("version") != VERSION:
        raise DataError(f"{path} is of version {note.get('version')}, and this areca reads {VERSION}; export it again.")
    for name, digest in note["files"].items():
        if name != Path(name).name or not (source / name).is_file():
            raise DataError(f"{source / name} is missing, which was exported with the rest; get it again.")
        if sha256_file(source / name) != digest:
            raise DataError(
                f"{source / name} is not what was exported (its SHA-256 differs); get it again, or remove {NOTE} to "
                f"import the directory as it is now, by its {CONFIG}."
            )
    return note


def _run_config(note: dict[str, Any], source: Path) -> RunConfig:
    try:
        config = from_dict(note["config"], RunConfig, "config")
        cohere.check(config.model)
        if not isinstance(note["step"], int) or note["step"] < 0 or not isinstance(note["parameters_sha256"], str):
            raise KeyError("step")
        return replace(config, model=config.model.resolved())
    except (KeyError, ConfigError) as error:
        raise DataError(f"{source / NOTE} is not this version's ({error}); export it again.") from None


def _read(source: Path, config: RunConfig, factor: float) -> "Decoder":
    import numpy as np

    with tensors.opened(source) as found:
        if config.model.n_layers > len(found.names()):  # before a name is made for each
            raise DataError(f"{source} has {len(found.names())} tensors, too few for {config.model.n_layers} layers.")
        wanted = cohere.shapes(config.model)
        if cohere.HEAD in found.names():  # some tools write the shared embedding twice
            found.check(wanted | {cohere.HEAD: wanted[cohere.EMBEDDING]})
            if not np.array_equal(found.read(cohere.HEAD), found.read(cohere.EMBEDDING)):
                raise DataError(
                    f"{source} has an {cohere.HEAD} that is not its embedding; a model here shares the two."
                )
        else:
            found.check(wanted)
        params = cohere.from_tensors(config.model, found.read)
    return params if factor == 1 else replace(params, norm=np.asarray(params.norm) * np.float32(factor))


def _tokenizer(source: Path, config: RunConfig, say: Callable[[str], None]) -> bytes | None:
    """tokenizer.json of a directory, or None, said, if it is not one that text can be read with here."""
    path = source / TOKENIZER
    try:
        tokenizer = load_tokenizer(path)
        if tokenizer.vocab_size > config.model.vocab_size:
            raise DataError(f"{path} has {tokenizer.vocab_size} tokens and the model {config.model.vocab_size}.")
    except DataError as error:
        say(f"The model is imported without a tokenizer, so it can't read text: {error}")
        return None
    return path.read_bytes()
