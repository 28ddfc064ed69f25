"""Stores that are changed on purpose and sealed again, as a program with a defect, or a forger, could write them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from ooc_mdp.store import Store
from ooc_mdp.store.layout import FIELDS, READ_FIELDS, SMALL_ARRAYS, small_array_shape, small_chunk_name
from ooc_mdp.store.manifest import table_fingerprint
from ooc_mdp.store.seal import digest_of


def write_frame(path: Path, frame: bytes) -> None:
    """A chunk file of a frame: its checksum follows it."""
    path.write_bytes(frame + google_crc32c.value(frame).to_bytes(4, "little"))


def chunk_path(root: Path, name: str, p: int) -> Path:
    """The file of a field's chunk of partition p, in whichever of the field's arrays it is."""
    [path] = root.glob(f"{name}/*/c.{p}.0")
    return path


def read_small(root: Path, name: str, attributes: dict[str, Any] | None = None) -> np.ndarray:
    """A small array as its file has it."""
    table = (attributes or read_attributes(root))["table"]
    shape = small_array_shape(name, table["n_partitions"], table["n_couplings"], len(table["fields"]))
    content = (root / small_chunk_name(name)).read_bytes()[:-4]
    return np.frombuffer(content, SMALL_ARRAYS[name][0]).reshape(shape).copy()


def write_small(root: Path, name: str, values: np.ndarray) -> None:
    """Replace a small array by another of the same shape, checksum and all."""
    write_frame(root / small_chunk_name(name), values.astype(SMALL_ARRAYS[name][0]).tobytes())


def read_attributes(root: Path) -> dict[str, Any]:
    attributes: dict[str, Any] = json.loads((root / "zarr.json").read_bytes())["attributes"]
    return attributes


def reseal(root: Path, change: Callable[[dict[str, Any]], object] = lambda attributes: None) -> None:
    """Change the attributes, then make manifest, fingerprint and digest those of what lies there now."""
    document = json.loads((root / "zarr.json").read_bytes())
    attributes = document["attributes"]
    change(attributes)
    table = attributes["table"]
    names = [name for name in FIELDS if name in table["fields"]]
    chunks = [[chunk_path(root, n, p).read_bytes() for n in names] for p in range(table["n_partitions"])]
    lengths = np.array([[len(chunk) for chunk in row] for row in chunks])
    write_small(root, "chunk_lengths", lengths)
    write_small(root, "chunk_crc32c", np.array([[google_crc32c.value(c[:-4]) for c in row] for row in chunks]))
    digests = b"".join(hashlib.sha256(chunk).digest() for row in chunks for chunk in row)
    write_small(root, "chunk_sha256", np.frombuffer(digests, np.uint8).reshape(len(chunks), len(names), 32))
    write_small(root, "chunk_bytes", lengths[:, [name in READ_FIELDS for name in names]].sum(axis=1))
    seal(root, document)


def seal(root: Path, document: dict[str, Any] | None = None) -> None:
    """Make fingerprint and digest those of attributes and small arrays, whatever these are."""
    document = document or json.loads((root / "zarr.json").read_bytes())
    attributes = document["attributes"]
    small = {name: read_small(root, name, attributes) for name in SMALL_ARRAYS}
    attributes["fingerprint"] = table_fingerprint(attributes["table"], small)
    attributes["digest"] = digest_of(attributes)
    (root / "zarr.json").write_text(json.dumps(document))


def accept(store: Store, sha256: bool = True) -> None:
    """Have an open store take the chunks that lie there now for those of its manifest, by all checksums or but one."""
    for i, name in enumerate(store.manifest.fields):
        for p in range(store.n_partitions):
            content = chunk_path(store.path, name, p).read_bytes()
            store.manifest.lengths[p, i], store.manifest.crc32c[p, i] = len(content), google_crc32c.value(content[:-4])
            if sha256:
                store.manifest.sha256[p, i] = np.frombuffer(hashlib.sha256(content).digest(), np.uint8)
    store.chunk_bytes[:] = store.manifest.stored_bytes(READ_FIELDS)
    for cached in ("_entries", "frame_buffer_bytes"):
        store.__dict__.pop(cached, None)
