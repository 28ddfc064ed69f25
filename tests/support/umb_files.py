"""UMB archives of a model of three states, with changes."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
from pathlib import Path


def umb_index(**changes: object) -> dict[str, object]:
    system = {
        "time": "discrete",
        "#players": 1,
        "#states": 3,
        "#initial-states": 1,
        "#choices": 3,
        "#choice-actions": 0,
        "#branches": 4,
        "#branch-actions": 0,
        "#observations": 0,
        "branch-probability-type": {"type": "double", "size": 64},
    }
    rewards = {
        "r0": {"alias": "cost", "applies-to": ["states", "choices"], "type": {"type": "double"}},
        "r1": {"applies-to": ["branches"], "type": {"type": "double", "size": 64}},
    }
    index: dict[str, object] = {"format-version": 1, "format-revision": 0, "transition-system": system}
    index["annotations"] = {"rewards": rewards}
    for key, value in changes.items():
        if key == "rewards":
            index["annotations"] = {"rewards": value}
        elif key.startswith("top_"):
            index[key[4:].replace("_", "-")] = value
        else:
            system[key.replace("n_", "#").replace("_", "-")] = value  # type: ignore[assignment]
    return index


def u8(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def f8(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


UMB_FILES = {
    "state-to-choices.bin": u8(0, 2, 3, 3),
    "choice-to-branches.bin": u8(0, 2, 3, 4),
    "branch-to-target.bin": u8(0, 1, 2, 2),
    "branch-to-probability.bin": f8(0.25, 0.75, 1, 1),
    "annotations/rewards/r0/states/values.bin": f8(1, 10, 100),
    "annotations/rewards/r0/choices/values.bin": f8(0.5, 0.25, 0),
    "annotations/rewards/r1/branches/values.bin": f8(4, 8, 16, 32),
    "state-is-initial.bin": u8(1),
}


def umb_file(path: Path, index: dict[str, object], files: dict[str, bytes | None] | None = None) -> Path:
    """A UMB file; its compression follows from the name: .gz, .xz or none."""
    members = {"index.json": json.dumps(index).encode()} | UMB_FILES | (files or {})
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in members.items():
            if data is not None:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(plain.getvalue()))
    return path
