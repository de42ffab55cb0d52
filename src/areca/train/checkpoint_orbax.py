"""What we ask of orbax: one checkpointer, and loading leaf by leaf so that memory holds the state and little more.

Saving streams by itself: orbax writes from the arrays' own buffers on the CPU, and from one copy on the host where the
arrays are on an accelerator. Loading does not: asked for a whole state it reads all leaves at once and holds most of
them twice, and its own limit of bytes in flight counts no copy that is still on its way to a device (docs/log.md has
both measured). So leaves are asked for in groups no larger than the largest leaf, and each group is awaited.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areca.train.checkpoint_leaves import mismatch


def checkpointer() -> Any:
    """orbax for one process: one database of files, uncompressed (weights hardly compress), silent but for errors."""
    import orbax.checkpoint as ocp

    _hush()
    _hush_closed_loops()
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)
    return ocp.AsyncCheckpointer(handler)


def _hush_closed_loops() -> None:
    """A save that failed is said by its error; the writes that end after it are not, each by a traceback.

    orbax has closed the event loop of the save by then, and tensorstore prints that it could not tell it.
    """
    shown = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        tb = unraisable.exc_traceback
        told = tb is not None and tb.tb_frame.f_code.co_name == "call_soon_threadsafe"
        if not (told and unraisable.exc_type is RuntimeError):
            shown(unraisable)

    if getattr(shown, "__module__", "") != __name__:  # else it is ours already
        sys.unraisablehook = hook


def load(orbax: Any, path: Path, wanted: Mapping[str, Any], *, part: bool) -> dict[str, Any] | str:
    """The stored leaves that `wanted` names, as it has them, or how they differ from it; `part` allows others beside.

    Memory beyond the leaves returned is a few times the largest of them.
    """
    import jax
    import orbax.checkpoint as ocp

    with jax.transfer_guard("allow"):
        stored = orbax.metadata(path).item_metadata.tree
        if part:
            stored = {name: leaf for name, leaf in stored.items() if name in wanted}
        different = mismatch(stored, wanted)
        if different is not None:
            return different
        loaded: dict[str, Any] = {}
        for names in groups({name: leaf.size * leaf.dtype.itemsize for name, leaf in wanted.items()}):
            leaves = {name: wanted[name] for name in names}
            how = ocp.checkpoint_utils.construct_restore_args(leaves)
            loaded |= orbax.restore(
                path, args=ocp.args.PyTreeRestore(item=leaves, restore_args=how, partial_restore=True)
            )
            jax.block_until_ready([loaded[name] for name in names])
        return loaded


def groups(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """The names in groups, in order, none of more bytes than the largest has."""
    limit, group, held = max(sizes.values(), default=0), [], 0
    for name, size in sizes.items():
        if group and held + size > limit:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    if group:
        yield group


def _hush() -> None:
    """Drops what orbax logs through absl, and asyncio of a save that failed while other writes of it were waited for:
    every error also raises, and one sentence of ours says what failed."""
    for name, wanted in (("absl", _not_orbax), ("asyncio", _not_of_a_save)):
        logger = logging.getLogger(name)
        if wanted not in logger.filters:
            logger.addFilter(wanted)


def _not_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


def _not_of_a_save(record: logging.LogRecord) -> bool:
    said = record.getMessage()
    return not ("never retrieved" in said and ".orbax-checkpoint-tmp" in said)
