"""Token stores behind a URL: fetched once into the cache to be read, built here and then sent.

The files lie below the URL as in a directory, store.json last when a store is sent: without it there is no store, and
it has the digest of every other file. A store is fetched whole before it is read (a run reads its windows in a random
order, so nearly all of it soon), into a directory of the cache named by its content; so the order and the bits are
those of a local store, training never waits for the link, and the disk must hold the store.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areca.data import store
from areca.errors import DataError, RemoteError
from areca.files import read_json, sync_directory, write_atomic, write_json
from areca.remote.fetch import Wanted, alone, fetch
from areca.remote.place import MARKER, Place, is_url
from areca.runtime import cache_directory

META = "store.json"


def local_store(url: str, say: Callable[[str], None]) -> Path:
    """The directory on this machine with the store behind `url`, fetched if it is not there yet.

    DataError if there is no whole store; RemoteError if a file is missing or damaged, or the link is lost.
    """
    place = Place(url)
    data = _read_meta(place)
    if data is None:
        if others := _no_part(place):
            raise DataError(
                f"there is no token store {url}, but other files ({others[0]}); make a store of text with `areca "
                f"corpus build {url} --out ELSEWHERE`, and name that."
            )
        began = f": its upload did not end; give `areca corpus build ... --out {url}` again" if place.names() else ""
        raise DataError(
            f"there is no token store {url}{began or f'; make one with `areca corpus build SOURCE --out {url}`'}."
        )
    meta = _parse(place, data)
    directory = _stores() / meta["fingerprint"][:32]
    if directory.is_dir():
        return directory
    with alone(f"stores/{meta['fingerprint'][:32]}.part", say) as part:
        if not directory.is_dir():  # else another process has fetched it meanwhile
            sizes = place.names()
            if missing := sorted(meta["files"].keys() - sizes.keys()):
                raise RemoteError(f"{place.of(missing[0])} is missing: the store is damaged; build it again.")
            wanted = {n: Wanted(((n, sizes[n].size),), digest) for n, digest in meta["files"].items()}
            fetch(place, wanted, part, say)
            write_atomic(part / META, data)
            part.rename(directory)
            sync_directory(directory.parent)
    return directory


def tokenizer_of(where: Path | str) -> tuple[Path, str]:
    """The tokenizer.json of a store, the only file that is fetched of one behind a URL, and the store's fingerprint."""
    if not is_url(where):
        opened = store.TokenStore.open(where)
        return opened.tokenizer_path, opened.fingerprint
    place = Place(str(where))
    if (data := _read_meta(place)) is None:
        raise DataError(f"there is no token store {where}; say where it is now with --store.")
    meta = _parse(place, data)
    name, digest = "tokenizer.json", meta["files"]["tokenizer.json"]
    if (there := place.info(name)) is None:
        raise RemoteError(f"{place.of(name)} is missing: the store is damaged; build it again.")
    with alone(f"tokenizers/{digest[:32]}") as directory:
        fetch(place, {name: Wanted(((name, there.size),), digest)}, directory, lambda _: None)
        return directory / name, meta["fingerprint"]


def deliver(
    url: str,
    build_fingerprint: str,
    make: Callable[[Path], dict[str, Any]],
    other: Callable[[dict[str, Any]], DataError],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Has `make` build a store here and sends it to `url`; returns the content of its store.json.

    A store of the same inputs that is there already is left as it is. What a kill or a lost link interrupts, the same
    command goes on with: neither a store that was built, for this URL or another, nor a file that was sent is made
    again. Raises what `other` makes of a store.json of other inputs, DataError if something else is there, and
    RemoteError before anything is built if nothing may be written there.
    """
    place = Place(url, to_write=True)
    if (data := _read_meta(place)) is not None:
        if (found := _parse(place, data))["build_fingerprint"] != build_fingerprint:
            raise other(found)
        say(f"{url} was built from the same inputs: reused")
        return found
    if others := _no_part(place):
        raise DataError(f"{url} is not empty and holds no token store ({others[0]}); choose another --out.")
    place.probe()
    with alone(f"outgoing/{build_fingerprint[:32]}", say) as here:
        if (built := _built(build_fingerprint)) is not None:
            say(f"{built} was built from the same inputs: reused")
            meta = read_json(built / META)
        else:
            meta, built = make(here), here
            directory = _stores() / meta["fingerprint"][:32]
            if not directory.is_dir():  # else one of other inputs with the same content
                directory.parent.mkdir(parents=True, exist_ok=True)
                here.rename(directory)  # training on the URL finds it there
                built = directory
        _send(place, built, meta, say)
        if built == here:
            shutil.rmtree(here)
    return meta


def _stores() -> Path:
    return cache_directory() / "remote" / "stores"


def _built(build_fingerprint: str) -> Path | None:
    """The store of these inputs in the cache, if there is one."""
    for path in sorted(_stores().glob(f"*/{META}")):
        if path.parent.suffix != ".part" and read_json(path).get("build_fingerprint") == build_fingerprint:
            return path.parent
    return None


def _no_part(place: Place) -> list[str]:
    """What lies at a place and is no file of a store."""
    return [n for n in place.names() if n not in ("tokenizer.json", META, MARKER) and not n.endswith(".bin")]


def _send(place: Place, here: Path, meta: dict[str, Any], say: Callable[[str], None]) -> None:
    # What is there already, and the tag it has there.
    note = (
        cache_directory() / "remote" / "outgoing" / f"{hashlib.sha256(place.url.encode()).hexdigest()[:32]}.sent.json"
    )
    sent = read_json(note) if note.is_file() else {}
    for name, digest in meta["files"].items():
        there = place.info(name) if sent.get(name, {}).get("sha256") == digest else None
        size = (here / name).stat().st_size
        if there is not None and there.tag is not None and (there.size, there.tag) == (size, sent[name]["tag"]):
            continue
        say(f"sending {name}, {size / 1e6:,.1f} MB, to {place}")
        place.write_file(name, os.fspath(here / name))
        there = place.info(name)
        if there is None or there.size != size:
            raise RemoteError(f"{place.of(name)} is not there as it was sent; give the same command again.")
        sent[name] = {"sha256": digest, "tag": there.tag}
        write_json(note, sent)
    place.write(META, (here / META).read_bytes())
    note.unlink(missing_ok=True)


def _read_meta(place: Place) -> bytes | None:
    """The bytes of store.json; None if there is none."""
    return None if place.info(META) is None else place.read(META)


def _parse(place: Place, data: bytes) -> dict[str, Any]:
    try:
        meta = json.loads(data)
        if meta["format"] == store.FORMAT and store.content_fingerprint(meta) == meta["fingerprint"]:
            return meta
    except (ValueError, KeyError, TypeError):
        pass
    raise DataError(f"{place.of(META)} does not describe an {store.FORMAT}, or is damaged; build the store again.")
