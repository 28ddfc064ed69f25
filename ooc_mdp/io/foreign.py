"""What a file is that no reader takes, as far as its first bytes show, and what to do with it.

Each description completes the sentence "this is ...". This module opens no file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

__all__ = ["PEXP", "binary_kind", "is_name", "model_kind", "name_kind", "text_kind"]

_ARRAYS = "an .npz of state_ptr, indptr, indices, data and rewards (format arrays)"
_PICKLE = "a pickle, which is never loaded"
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x93NUMPY", f"one NumPy array (.npy), but a model takes several: give {_ARRAYS}"),
    (b"\x00\x12\x7b\x50", f"a PETSc binary matrix, which is not read: give {_ARRAYS}"),
    (b"\x50\x7b\x12\x00", f"a byte-swapped PETSc binary matrix, which is not read: give {_ARRAYS}"),
    (b"\x89HDF", f"an HDF5 file, which is not read: give {_ARRAYS}"),
    (b"MATLAB 5.0", f"a MATLAB file, which is not read: give {_ARRAYS}"),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in (2, 3, 4, 5)),
    (b"PK\x03\x04", "a zip archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file; decompress it first"),
    (b"\x04\x22\x4d\x18", "an LZ4 file; decompress it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive; unpack it first"),
    (b"\x1f\x9d", "a file of the program compress; decompress it first"),
    (b"\xff\xfe", "UTF-16 text (little endian); save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text (big endian); save it as UTF-8"),
)

_INTERVALS = "transitions have intervals of probabilities; give each one probability"
_GAME = "a stochastic game; only one player is solved for"
_KINDS = {
    "ctmc": "a CTMC (rates in continuous time); uniformise it, or export a DTMC or an MDP",
    "markov automaton": "a Markov automaton (continuous time); export an MDP",
    "ma": "a Markov automaton (continuous time); export an MDP",
    "pomdp": "a POMDP; states must be observable: export its underlying MDP",
    "popta": "a partially observable timed automaton; states must be observable, and time discrete",
    "pta": "a probabilistic timed automaton; export an MDP of it (digital clocks)",
    "imdp": f"an interval MDP: its {_INTERVALS}",
    "idtmc": f"an interval DTMC: its {_INTERVALS}",
    "lts": "a labelled transition system (LTS), which has no probabilities; export an MDP",
    "smg": _GAME,
    "s2pg": _GAME,
    "tsg": _GAME,
    "csg": _GAME,
}
_PROGRAM_WORDS = (
    *("mdp", "dtmc", "ctmc", "pomdp", "imdp", "idtmc", "pta", "popta", "lts", "smg", "csg", "ma"),
    *("nondeterministic", "probabilistic", "stochastic", "const", "global", "formula", "label", "module", "rewards"),
    *("init", "system", "player", "observable", "observables", "evolve"),
)
_PROGRAM = (
    "a PRISM program (a model in the PRISM language); export it with prism -exportmodel FILE.tra,srew,trew or "
    "storm --exportbuild FILE.drn"
)
_OLD_STORM = "a model in Storm's old explicit format; export it with storm --exportbuild FILE.drn"
PEXP = (
    "PRISM's export in one file (.pexp: transitions, states, labels and rewards), which is not read; export them apart "
    "with prism -exportmodel FILE.tra,srew,trew"
)
_LTS_FILE = "a labelled transition system (.aut), which has no probabilities; give an MDP"
_POMDP_FILE = "a POMDP in Cassandra's format; states must be observable: give its underlying MDP"
_NAMES = {
    **dict.fromkeys((".nm", ".pm", ".sm", ".gm", ".prism", ".smg"), _PROGRAM),
    ".pexp": PEXP,
    ".aut": _LTS_FILE,
    ".pomdp": _POMDP_FILE,
    ".jani": "a JANI model; export it with storm --exportbuild FILE.umb",
}
_TRA_COMMENT = re.compile(rb"# ?transitions", re.IGNORECASE)
_PEXP_SECTION = re.compile(rb"# ?(states|labels|observations|reward structure)", re.IGNORECASE)


def binary_kind(head: bytes) -> str | None:
    """What the magic bytes of a file without a reader show; None if they show nothing."""
    return next((what for magic, what in _MAGIC if head.startswith(magic)), None)


def name_kind(path: str) -> str | None:
    """What the ending of a file's name means, where no format takes the file; None if it means nothing."""
    return _NAMES.get(os.path.splitext(path)[1].lower())


def model_kind(kind: str) -> str | None:
    """Why a model of a type that a file names, such as POMDP, is not read; None for a type that is not known here."""
    return _KINDS.get(kind.lower())


def text_kind(head: bytes) -> str | None:
    """What the first bytes of a text show, where no format takes it; None if they show nothing."""
    lines = [line.strip() for line in head.removeprefix(b"\xef\xbb\xbf").split(b"\n")]
    if _is_pexp(lines):
        return PEXP
    filled = [line for line in lines if line and not line.startswith((b"//", b"#", b"%"))]
    if not filled:
        return None
    if filled[0].startswith((b"des (", b"des(")):
        return _LTS_FILE
    if re.match(rb"(discount|values|states|actions|observations)\s?:", filled[0]):
        return _POMDP_FILE
    word = re.match(rb"[a-z]+", filled[0].lower())
    if word is not None and word[0].decode() in _PROGRAM_WORDS:
        return _OLD_STORM if _is_word_and_numbers(filled) else _PROGRAM
    return _explicit_kind([line.split() for line in filled])


def _is_pexp(lines: Sequence[bytes]) -> bool:
    """Whether a list of transitions is followed by another section, or by the names of the variables."""
    begin = next((i for i, line in enumerate(lines) if _TRA_COMMENT.match(line)), None)
    if begin is None:
        return False
    return any(_PEXP_SECTION.match(line) or line.startswith(b"(") for line in lines[begin + 1 :])


def _is_word_and_numbers(lines: Sequence[bytes]) -> bool:
    return len(lines) > 1 and lines[0].isalpha() and all(field.isdigit() for field in lines[1].split()[:3])


def _explicit_kind(lines: Sequence[Sequence[bytes]]) -> str | None:
    """A model of another type in the form of a .tra file: its counts, then its transitions."""
    if len(lines) < 2 or not all(field.isdigit() for field in lines[0]):
        return None
    fields = lines[1]
    if len(lines[0]) == 4 and len(fields) in (5, 6):
        return _KINDS["pomdp"]
    if len(lines[0]) == 3 and len(fields) in (3, 4) and all(field.isdigit() for field in fields[:3]):
        return _KINDS["lts"] if len(fields) == 3 or is_name(fields[3]) else None
    return None


def is_name(field: bytes) -> bool:
    """Whether a field is an action's name, and no number nor a word for one."""
    return field[:1].isalpha() and field.lower() not in (b"nan", b"inf", b"infinity")
