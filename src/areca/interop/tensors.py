"""Tensors of a directory in the safetensors format, in one file or in several with an index; nothing is unpickled.

What a file holds is compared with what is wanted, name by name, before any tensor is read.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from areca.errors import DataError
from areca.files import read_json

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
_TYPES = ("F32", "BF16", "F16")  # float32 holds each of them exactly
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class Tensors:
    """The tensors of open files."""

    def __init__(self, files: Mapping[str, Any], where: Mapping[str, str], path: Path) -> None:
        self.files, self.where, self.path = files, where, path

    def names(self) -> set[str]:
        """Of all of them."""
        return set(self.where)

    def check(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """DataError unless there are these tensors, of these shapes and of a floating type, and no others."""
        for name in sorted(wanted.keys() - self.where.keys()):
            raise DataError(f"{self.path} has no tensor {name}, which its config.json asks for.")
        for name in sorted(self.where.keys() - wanted.keys()):
            raise DataError(f"{self.path} has a tensor {name}, for which the model of its config.json has no place.")
        for name, shape in wanted.items():
            found = self.files[self.where[name]].get_slice(name)
            if tuple(found.get_shape()) != shape:
                raise DataError(
                    f"{self.path} has {name} of shape {list(found.get_shape())}, and by its config.json it is "
                    f"{list(shape)}."
                )
            if found.get_dtype() not in _TYPES:
                raise DataError(
                    f"{self.path} has {name} in {found.get_dtype()}; only {', '.join(_TYPES)} can be imported, so save "
                    "it in one of these first."
                )

    def read(self, name: str) -> np.ndarray:
        """A tensor in float32, exactly as it is stored; DataError if not all of it is finite."""
        import jax.numpy  # noqa: F401  (numpy then knows bfloat16)

        value = self.files[self.where[name]].get_tensor(name).astype(np.float32, copy=False)
        if not math.isfinite(value.sum(dtype=np.float64)) and not np.isfinite(value).all():
            raise DataError(
                f"{self.path} has values in {name} that are not finite, so nothing can be computed with it."
            )
        return value


@contextmanager
def opened(path: Path) -> Iterator[Tensors]:
    """The tensors of a directory; DataError for files that are missing, damaged, or no safetensors."""
    where = _index(path)
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for file in [WEIGHTS] if where is None else sorted(set(where.values())):
            files[file] = stack.enter_context(_open(path / file))
        if where is None:
            yield Tensors(files, dict.fromkeys(files[WEIGHTS].keys(), WEIGHTS), path)
            return
        held = {name: file for file, f in files.items() for name in f.keys()}  # noqa: SIM118 (no dict)
        for name, file in where.items():
            if held.get(name) != file:
                raise DataError(f"{path / INDEX} says that {name} is in {file}, which does not have it.")
        yield Tensors(files, held, path)


def weight_files(path: Path) -> list[str]:
    """Names of the files that `opened` reads, the index included."""
    where = _index(path)
    return [WEIGHTS] if where is None else [INDEX, *sorted(set(where.values()))]


def _index(path: Path) -> dict[str, str] | None:
    """Tensor name -> file name by a directory's index, None where there is one file; DataError for neither."""
    if (path / WEIGHTS).is_file():
        return None
    if not (path / INDEX).is_file():
        pickles = sorted(p.name for pattern in _PICKLES for p in path.glob(pattern))
        if pickles:
            raise DataError(
                f"{path} has its weights in {pickles[0]}, a pickle, which may run code when it is read; save them as "
                "safetensors (transformers' save_pretrained does) and import that."
            )
        raise DataError(f"{path} has neither {WEIGHTS} nor {INDEX}, so there are no weights to import.")
    values = read_json(path / INDEX)
    where = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(where, dict) or not where:
        raise DataError(f"{path / INDEX} has no weight_map, so it is no index of safetensors.")
    for name, file in where.items():
        if not isinstance(file, str) or file != Path(file).name or not file.endswith(".safetensors"):
            raise DataError(f"{path / INDEX} puts {name} in {file!r}, which is no .safetensors file beside it.")
    return where


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DataError(f"{path} is missing, and tensors should be in it.")
    try:
        with safe_open(path, framework="np") as f:
            yield f
    except SafetensorError as error:
        raise DataError(
            f"{path} is cut short or damaged, or no safetensors ({str(error).rstrip('.')}); get it anew."
        ) from None
