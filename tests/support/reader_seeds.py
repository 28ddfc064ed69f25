"""Small valid models in every format, as parts that a fuzzer alters before they are packed into files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from umb_files import UMB_FILES, umb_index

__all__ = ["SEEDS", "Parts", "Seed"]

Parts = dict[str, bytes]
"""Contents by the name of a file or of a member of an archive."""


@dataclass(frozen=True)
class Seed:
    """A model in one format."""

    format: str
    main: str
    """The file to read; "." for the folder."""
    parts: Parts
    pack: Callable[[Parts], Parts] = lambda parts: parts
    """Files of the parts, such as an archive of them."""
    reward_model: str | None = None


def zipped(parts: Parts) -> Parts:
    """One archive, whose checksums are right whatever its members hold."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, contents in parts.items():
            archive.writestr(name, contents)
    return {"model.npz": data.getvalue()}


def tarred(parts: Parts) -> Parts:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, contents in parts.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            archive.addfile(info, io.BytesIO(contents))
    return {"model.umb": data.getvalue()}


def compressed(compress: Callable[[bytes], bytes], suffix: str) -> Callable[[Parts], Parts]:
    return lambda parts: {f"{name}{suffix}": compress(contents) for name, contents in parts.items()}


def npy(values: object, dtype: str | None = None) -> bytes:
    data = io.BytesIO()
    np.save(data, np.array(values, dtype))
    return data.getvalue()


JOHANNSSON = (
    b"S:0:0:2\nA:0:2\nD:0:0.5:5\nD:1:0.5:5\nA:1:1\nD:1:1:10\nS:1:0:1\nA:0:2\nD:1:3/4:-1\nD:2:0.25:-1\nS:2:0.5:0\n"
)
XML = (
    b'<?xml version="1.0"?>\n<MDP domain="d">\n<Description>text</Description>\n<Actions><Action id="0"/></Actions>\n'
    b'<States>\n<State id="0"><AvailableActions><Action id="0">\n<ResultingState id="0" probability="1/2" '
    b'actionReward="2"/>\n<ResultingState id="1" probability="0.5" actionReward="-0.25"/>\n</Action></AvailableActions>'
    b'</State>\n<State id="1"/>\n</States>\n</MDP>\n'
)
DRN = (
    b"// exported\n@type: MDP\n@value_type: double\n@parameters\n\n@reward_models\nflips steps \n@nr_states\n3\n"
    b'@nr_choices\n4\n@model\nstate 0 [0, 2] init "two words"\n//[x=1]\n\taction 0 [1, 3]\n\t\t1 : 0.5\n\t\t2 : 1/2\n'
    b"\taction b [1, 1.5]\n\t\t0 : 1\nstate 1 [0, 1]\n\taction __NOLABEL__ [1, 0]\n\t\t1 : 1\nstate 2 !x\n\taction 0\n"
    b"\t\t2 : 1\n"
)
TRA = b"# Transitions (MDP)\n3 4 6\n0 0 0 0.5\n0 0 1 0.5 go\n0 1 1 1\n1 0 1 0.75\n1 0 2 1/4\n2 0 2 1\n"
SREW = b'# Reward structure "steps"\n# State rewards\n3 2\n0 5\n1 -1\n'
PRISM = {
    "model.tra": TRA,
    "model.srew": SREW,
    "model.trew": b'# Reward structure "steps"\n3 4 3\n0 0 1 2\n0 1 1 4\n1 0 2 1/8\n',
    "model.lab": b'0="init" 1="deadlock"\n0: 0\n',
    "model.sta": b"(x)\n0:(0)\n1:(1)\n2:(2)\n",
}
DTMC = {"model.tra": b"# Transitions (DTMC)\n3 4\n0 0 0.5\n0 1 0.5\n1 1 1\n2 2 1\n", "model.trew": b"3 1\n0 1 2\n"}
LIST = {"model.txt": b"# s a s' p\n0 0 0 0.5\n0 0 1 0.5\n0 1 1 1\n1 0 0 1\n", "rewards": b"1\n-2/3\n"}
ARRAYS = {
    "state_ptr.npy": npy([0, 2, 3, 3]),
    "indptr.npy": npy([0, 2, 3, 4]),
    "indices.npy": npy([0, 1, 2, 2]),
    "data.npy": npy([0.25, 0.75, 1.0, 1.0]),
    "r_sa.npy": npy([1.0, 2.0, 3.0]),
    "r_s.npy": npy([0.0, 0.0, 7.0]),
    "row_label.npy": npy([5, 6, 7]),
    "durations.npy": npy([1.0, 2.0, 1.0]),
}
DENSE = {
    "P.npy": npy([[[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]]),
    "R.npy": npy([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
}
QUANTECON = {
    "R.npy": npy([5.0, 10.0, -1.0]),
    "Q.npy": npy([(0.5, 0.5), (0.0, 1.0), (0.0, 1.0)]),
    "s_indices.npy": npy([0, 0, 1]),
    "a_indices.npy": npy([0, 1, 0]),
}
UMB = {"index.json": json.dumps(umb_index()).encode(), **UMB_FILES}

SEEDS = {
    "johannsson": Seed("johannsson", "model.txt", {"model.txt": JOHANNSSON}),
    "johannsson-gz": Seed(
        "johannsson", "model.txt.gz", {"model.txt": JOHANNSSON}, compressed(lambda data: gzip.compress(data, 6), ".gz")
    ),
    "xml": Seed("johannsson-xml", "model.xml", {"model.xml": XML}),
    "xml-bz2": Seed("johannsson-xml", "model.xml.bz2", {"model.xml": XML}, compressed(bz2.compress, ".bz2")),
    "drn": Seed("drn", "model.drn", {"model.drn": DRN}, reward_model="steps"),
    "drn-xz": Seed("drn", "model.drn.xz", {"model.drn": DRN}, compressed(lzma.compress, ".xz"), "steps"),
    "prism": Seed("prism", "model.tra", PRISM),
    "prism-gz": Seed("prism", "model.tra.gz", PRISM, compressed(lambda data: gzip.compress(data, 6), ".gz")),
    "prism-dtmc": Seed("prism", "model.tra", DTMC),
    "transition-list": Seed("transition-list", "model.txt", LIST),
    "arrays": Seed("arrays", "model.npz", ARRAYS, zipped),
    "mdptoolbox": Seed("mdptoolbox", "model.npz", DENSE, zipped),
    "mdptoolbox-folder": Seed("mdptoolbox", ".", DENSE),
    "quantecon": Seed("quantecon", "model.npz", QUANTECON, zipped),
    "umb": Seed("umb", "model.umb", UMB, tarred, "cost"),
    "umb-gz": Seed(
        "umb", "model.umb", UMB, lambda parts: {"model.umb": gzip.compress(tarred(parts)["model.umb"])}, "cost"
    ),
}
