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
from areca.remote.place import Place, is_url
from areca.runtime import cache_directory

META = "store.json"


def local_store(url: str, say: Callable[[str], None]) -> Path:
    """The directory on this machine with the store behind `url`, fetched if it is not there yet.

    DataError if there is no whole store; RemoteError if a file is missing or damaged, or the link is lost.
    """
    place = Place(url)
    data = _read_meta(place)
    if data is None:
        began = f": its upload did not end; give `areca corpus build ... --out {url}` again" if place.names() else ""
        raise DataError(
            f"there is no token store {url}{began or f'; make one with `areca corpus build SOURCE --out {url}`'}."
        )
    meta = _parse(place, data)
    directory = cache_directory() / "remote" / "stores" / meta["fingerprint"][:32]
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
    url: str, build_fingerprint: str, make: Callable[[Path], dict[str, Any]], say: Callable[[str], None]
) -> dict[str, Any]:
    """Has `make` build a store here and sends it to `url`; returns the content of its store.json.

    A store of the same inputs that is there already is left as it is. What a kill or a lost link interrupts, the same
    command goes on with: neither a store that was built nor a file that was sent is made again. DataError if something
    else is there.
    """
    place = Place(url)
    if (data := _read_meta(place)) is not None:
        if _parse(place, data)["build_fingerprint"] != build_fingerprint:
            raise DataError(f"{url} is a store built from other inputs; choose another --out or remove it.")
        say(f"{url} was built from the same inputs: reused")
        return json.loads(data)
    others = [n for n in place.names() if n != "tokenizer.json" and not n.endswith(".bin")]
    if others:
        raise DataError(f"{url} is not empty and holds no token store ({others[0]}); choose another --out.")
    with alone(f"outgoing/{hashlib.sha256(place.url.encode()).hexdigest()[:32]}", say) as here:
        if (here / META).is_file() and read_json(here / META)["build_fingerprint"] != build_fingerprint:
            shutil.rmtree(here)
        meta = make(here)
        _send(place, here, meta, say)
        directory = cache_directory() / "remote" / "stores" / meta["fingerprint"][:32]
        directory.parent.mkdir(parents=True, exist_ok=True)
        if directory.is_dir():
            shutil.rmtree(here)
        else:
            here.rename(directory)  # training on the URL finds it there
    return meta


def _send(place: Place, here: Path, meta: dict[str, Any], say: Callable[[str], None]) -> None:
    note = here.with_name(f"{here.name}.sent.json")  # what is there already, and the tag it has there
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
