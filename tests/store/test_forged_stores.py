"""Stores that are sealed but wrong: no loop leaves its arrays, whoever wrote the sizes, pointers and indices.

Forged stores are solved in a process of their own, because a loop that trusts a wrong number may end the process. The
slow test compiles all loops with bounds checks, so that it sees each access outside an array, those of the loops that
sweep by addresses among them (`ooc_mdp.backends.cpu.addresses`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment

FORGE = """
import shutil, sys
from pathlib import Path
import numpy as np
from forge import chunk_path, read_attributes, read_small, reseal, seal, write_frame, write_small
from store_models import ModelSource, random_model
import ooc_mdp
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.errors import OocMdpError
from ooc_mdp.store import open_store, check_store
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.encodings import encode
from ooc_mdp.store.layout import SMALL_ARRAYS

place, count, seed, device = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = np.random.default_rng(seed)
models = [
    random_model(3, 24, durations=True, labels=True, initial_values=True),
    random_model(4, 24, uniform=True, terminal=0.0),
]
wholes = []
for i, model in enumerate(models):
    wholes.append(convert(ModelSource(model), place / f"whole{i}", ConvertOptions(partitions=3, threads=1)))
extremes = [0, 1, -1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 62), -(1 << 62)]

def forge(path, whole):
    kind = rng.integers(4)
    if kind == 0:  # a small array
        name = rng.choice([n for n in SMALL_ARRAYS if not n.startswith("chunk_sha")])
        values = read_small(path, name)
        flat = values.reshape(-1)
        at = rng.integers(flat.size)
        with np.errstate(all="ignore"):
            flat[at] = np.array(rng.choice(extremes)).astype(values.dtype)
        write_small(path, name, values)
        seal(path)
    elif kind == 1:  # an attribute
        name = rng.choice(["n_states", "n_rows", "n_transitions", "n_couplings", "n_partitions",
                           "actions_per_state", "successors_per_action"])
        seal_with(path, lambda t: t.update({name: int(abs(int(rng.choice(extremes))))}))
    elif kind == 2:  # a field's description
        fields = read_attributes(path)["table"]["fields"]
        name = rng.choice(list(fields))
        key = rng.choice(["stored", "encoding"])
        value = {"stored": rng.choice(["uint8", "uint16", "uint32", "float32", "float64", "int64", "bool"]).item(),
                 "encoding": rng.choice(["row-delta", "fixed24", "fixed24-delta2", "float32-delta2"]).item()}[key]
        seal_with(path, lambda t: t["fields"][name].update({key: value}))
    else:  # values of a chunk
        name = rng.choice(list(whole.fields))
        p = int(rng.integers(3))
        meta = whole.fields[name]
        values = whole.read_field(name, p)[0].copy()
        if values.size and values.dtype != bool:
            with np.errstate(all="ignore"):
                values[rng.integers(values.size)] = np.array(rng.choice(extremes)).astype(values.dtype)
        if meta.encoding is not None:
            values = encode(meta.encoding, values, whole._row_layout(p, whole.sizes(p), {}))
        frame = encode_frame(meta.field, values.astype(meta.stored, copy=False))
        write_frame(chunk_path(path, name, p), frame)
        reseal(path)

def seal_with(path, change):
    import json
    document = json.loads((path / "zarr.json").read_bytes())
    change(document["attributes"]["table"])
    try:
        seal(path, document)
    except (ValueError, OverflowError, MemoryError):  # small arrays of other shapes: their old hash stays
        from ooc_mdp.store.seal import digest_of
        document["attributes"]["digest"] = digest_of(document["attributes"])
        (path / "zarr.json").write_text(json.dumps(document))

refused = solved = 0
for i in range(count):
    whole = wholes[i % 2]
    path = place / "forged"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(whole.path, path)
    forge(path, whole)
    try:
        opened = open_store(path)
        for p in range(opened.n_partitions):
            opened.read(p)
            opened.read_frames(p, np.empty(opened.facts.frame_buffer_bytes, np.uint8))
            opened.original_states(p), opened.action_labels(p)
        for method in ("vi", "p-eva", "policy-iteration"):
            ooc_mdp.solve(opened, 0.9, device=device, method=method, epsilon=1e-2, time_limit=1.0)
        solved += 1
    except OocMdpError as error:
        refused += 1
    try:
        check_store(open_store(path))
    except OocMdpError:
        pass
print(refused, solved)
"""


@pytest.mark.parametrize(
    ("count", "checked"),
    [(60, False), pytest.param(400, True, marks=pytest.mark.slow)],
    ids=["some", "many, with bounds checks"],
)
def test_no_loop_leaves_the_arrays_of_a_forged_store(tmp_path: Path, count: int, checked: bool) -> None:
    variables = environment()
    if checked:
        variables |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    run([], tmp_path, count, "cpu", variables)


@pytest.mark.gpu
def test_no_kernel_leaves_the_arrays_of_a_forged_store(tmp_path: Path) -> None:
    sanitizer = shutil.which("compute-sanitizer")
    watched = [] if sanitizer is None else [sanitizer, "--tool", "memcheck", "--error-exitcode", "9"]
    variables = environment()
    run(watched, tmp_path, 30, "cuda:0", variables)


def run(watched: list[str], place: Path, count: int, device: str, variables: dict[str, str]) -> None:
    command = [*watched, sys.executable, "-X", "faulthandler", "-c", FORGE, str(place), str(count), "5", device]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert ended.returncode == 0, f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
    lines = [line for line in ended.stdout.splitlines() if not line.startswith("=====")]
    refused, solved = map(int, lines[-1].split())
    assert refused + solved == count
    assert refused > count // 3
