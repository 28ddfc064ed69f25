"""UMB archives with one entry altered, and what the altered archive says.

An alteration changes a key or a value of index.json, its text, or the bytes, the name or the presence of a member.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import tarfile
from pathlib import Path
from random import Random
from typing import Any

from altered_arrays import Made, flat_arrays
from altered_text import alter_text
from exact_rows import Entry, Exact, Invalid, Row, random_model, ranges, rational, reward_of, row
from text_models import Model

__all__ = ["UmbMaker"]

_NUMBERS = (0.0, 1.0, 0.25, 0.5, 0.75, 2.0, -1.0, 7.0, 1e-320, float("nan"), float("inf"), -0.0)
_INDEX: dict[str, Any] = {
    "format-version": 1,
    "format-revision": 0,
    "model-data": {"name": "m"},
    "transition-system": {
        "time": "discrete",
        "#players": 1,
        "#initial-states": 1,
        "#choice-actions": 0,
        "#branch-actions": 0,
        "#observations": 0,
        "branch-probability-type": {"type": "double", "size": 64},
    },
    "annotations": {
        "aps": {"goal": {"applies-to": ["states"], "type": {"type": "bool"}}},
        "rewards": {
            "r0": {"alias": "cost", "applies-to": ["states", "branches"], "type": {"type": "double", "size": 64}},
            "r1": {"applies-to": ["choices"], "type": {"type": "double"}},
        },
    },
}
_VALUES = (
    0,
    1,
    2,
    3,
    -1,
    1.0,
    True,
    False,
    None,
    "1",
    "",
    "double",
    "rational",
    "int",
    "stochastic",
    [],
    {},
    ["choices"],
    64,
    128,
)
_FOLDER = "annotations/rewards/r0/"
_FILE_NAMES = (
    *("state-to-choices.bin", "choice-to-branches.bin", "branch-to-target.bin", "branch-to-probability.bin"),
    *(
        _FOLDER + "states/values.bin",
        _FOLDER + "choices/values.bin",
        _FOLDER + "branches/values.bin",
        _FOLDER + "x.bin",
    ),
    *("state-to-player.bin", "state-to-exit-rate.bin", "observations/states/values.bin", "rewards.bin", "index.JSON"),
)


def _files(model: Model) -> dict[str, bytes]:
    flat = flat_arrays(model)
    return {
        "state-to-choices.bin": flat["state_ptr"].astype("<u8").tobytes(),
        "choice-to-branches.bin": flat["indptr"].astype("<u8").tobytes(),
        "branch-to-target.bin": flat["indices"].astype("<u8").tobytes(),
        "branch-to-probability.bin": flat["data"].tobytes(),
        _FOLDER + "states/values.bin": flat["r_s"].tobytes(),
        _FOLDER + "branches/values.bin": flat["r_sas"].tobytes(),
        "annotations/rewards/r1/choices/values.bin": bytes(8 * (flat["indptr"].size - 1)),
        "annotations/aps/goal/states/values.bin": bytes(8),
        "state-is-initial.bin": bytes(8),
    }


def _alter_json(rng: Random, tree: dict[str, Any]) -> None:
    """One key of one object left out, renamed, added or given another value."""
    places: list[tuple[dict[str, Any], str]] = []

    def walk(node: dict[str, Any]) -> None:
        for key, value in node.items():
            places.append((node, key))
            if isinstance(value, dict):
                walk(value)

    walk(tree)
    node, key = rng.choice(places)
    match rng.choice("vvvdra"):
        case "v":
            node[key] = rng.choice(_VALUES)
        case "d":
            del node[key]
        case "r":
            node[rng.choice((key + "s", key.upper(), rng.choice(places)[1]))] = node.pop(key)
        case "a":
            node[rng.choice(("x", "probability-type", "exit-rate-type", "#observations", "size", "alias"))] = (
                rng.choice(_VALUES)
            )


def _alter_file(rng: Random, files: dict[str, bytes]) -> None:
    name = rng.choice(list(files))
    match rng.choice("vvvvvdnnas"):
        case "v" if files[name]:
            at = rng.randrange(len(files[name]) // 8) * 8
            value = rng.choice(
                (struct.pack("<d", rng.choice(_NUMBERS)), struct.pack("<Q", rng.choice((0, 1, 2, 3, 9, 2**63))))
            )
            files[name] = files[name][:at] + value + files[name][at + 8 :]
        case "d":
            del files[name]
        case "n":
            files[rng.choice(_FILE_NAMES)] = files.pop(name)
        case "a":
            files.setdefault(rng.choice(_FILE_NAMES), bytes(rng.choice((0, 8, 16, len(files[name])))))
        case _:
            files[name] = files[name][:-8] if rng.random() < 0.5 else files[name] + bytes(8)


def _numbers(files: dict[str, bytes], name: str, code: str, count: int) -> list[Any]:
    """The numbers of a member, which are 0 where it is absent."""
    data = files.get(name, bytes(8 * count))
    if len(data) != 8 * count:
        raise Invalid(f"{name} has {len(data)} bytes")
    return list(struct.unpack(f"<{count}{code}", data))


def _system(index: dict[str, Any]) -> tuple[list[int], bool]:
    """Numbers of states, choices and branches, and whether there are probabilities."""
    system = index.get("transition-system")
    known = {"#states", "#choices", "#branches", "player-names", "observations-apply-to"}
    if not isinstance(system, dict) or not set(system) <= known | set(_INDEX["transition-system"]):
        raise Invalid("keys")
    counts = [system.get(key) for key in ("#states", "#choices", "#branches", "#players")]
    if any(type(count) is not int or not 0 <= count < 1000 for count in (*counts, system.get("#observations", 0))):
        raise Invalid(f"counts {counts}")
    if system.get("time") != "discrete" or counts[3] > 1 or system.get("#observations", 0) or counts[0] < 1:
        raise Invalid("no MDP")
    kind = system.get("branch-probability-type")
    if kind is not None and not _is_double(kind):
        raise Invalid(f"probabilities of type {kind}")
    return counts, kind is not None


def _is_double(kind: Any) -> bool:
    if not isinstance(kind, dict) or kind.get("type") != "double" or not set(kind) <= {"type", "size"}:
        return False
    return type(kind.get("size", 64)) is int and kind.get("size", 64) == 64


def _meaning(index: dict[str, Any], files: dict[str, bytes]) -> Exact:
    (n, m, nnz, players), with_probabilities = _system(index)
    annotations = index.get("annotations")
    rewards = annotations.get("rewards") if isinstance(annotations, dict) else None
    if not isinstance(rewards, dict) or not set(index) <= {*_INDEX, "file-data", "valuations"}:
        raise Invalid("no rewards, or a key that is not defined")
    aliases = [name for name, each in rewards.items() if isinstance(each, dict) and each.get("alias") == "cost"]
    name = "cost" if "cost" in rewards else aliases[0] if len(aliases) == 1 else ""
    reward = rewards.get(name)
    if not isinstance(reward, dict) or not set(reward) <= {
        "alias",
        "description",
        "applies-to",
        "type",
        "lower",
        "upper",
    }:
        raise Invalid("no such reward structure")
    places = reward.get("applies-to")
    if not isinstance(places, list) or not set(places) <= {"states", "choices", "branches"} or not places:
        raise Invalid("what the rewards apply to")
    if not _is_double(reward.get("type")) or type(index.get("format-version")) is not int:
        raise Invalid("types")
    mine = f"annotations/rewards/{name}/"
    used = {
        *_FILE_NAMES[:3],
        *(f"{mine}{place}/values.bin" for place in places),
        *_FILE_NAMES[3 : 3 + with_probabilities],
    }
    refused = {each for each in files if each in _FILE_NAMES or each.startswith(mine)} - used - {"state-to-player.bin"}
    if refused or any(files.get("state-to-player.bin", b"")):
        raise Invalid(f"members {sorted(refused)}")
    states = (
        list(range(n + 1))
        if "state-to-choices.bin" not in files
        else _numbers(files, "state-to-choices.bin", "Q", n + 1)
    )
    rows = (
        list(range(m + 1))
        if "choice-to-branches.bin" not in files
        else _numbers(files, "choice-to-branches.bin", "Q", m + 1)
    )
    targets = _numbers(files, "branch-to-target.bin", "Q", nnz)
    weights = _numbers(files, "branch-to-probability.bin", "d", nnz) if with_probabilities else [1.0] * nnz
    values = {
        place: _numbers(files, f"{mine}{place}/values.bin", "d", count) if place in places else [0.0] * count
        for place, count in (("states", n), ("choices", m), ("branches", nnz))
    }
    spans, choices = ranges(rows, nnz), ranges(states, m)
    if players == 0 and any(len(span) > 1 for span in choices):
        raise Invalid("choices of a DTMC")

    def one(s: int, j: int) -> Row:
        entries = [Entry(targets[k], rational(weights[k]), reward_of(values["branches"][k])) for k in spans[j]]
        return row(entries, n, rational(values["states"][s]) + rational(values["choices"][j]), j - choices[s].start)

    exact = Exact([[one(s, j) for j in span] for s, span in enumerate(choices)])
    exact.terminal = {s: rational(values["states"][s]) for s in range(n) if not exact.rows[s]}
    return exact


class UmbMaker:
    """UMB archives."""

    name = "umb"

    def make(self, rng: Random, folder: Path, altered: bool) -> Made:
        """Write a model into a folder: the source, the options for reading it, and what says its meaning."""
        model = random_model(rng)
        files, index = _files(model), json.loads(json.dumps(_INDEX))
        counts = (
            len(model.rows),
            sum(map(len, model.rows)),
            sum(len(action) for state in model.rows for action in state),
        )
        index["transition-system"] |= dict(zip(("#states", "#choices", "#branches"), counts, strict=True))
        kind = rng.random() if altered else 1.0
        if kind < 0.35:
            _alter_json(rng, index)
        text = json.dumps(index, indent=rng.choice((None, 1)))
        if 0.35 <= kind < 0.5:
            text = alter_text(rng, text)
        elif 0.5 <= kind < 1.0:
            _alter_file(rng, files)
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as archive:
            for name, data in {"index.json": text.encode("utf-8", "surrogatepass"), **files}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        (folder / "m.umb").write_bytes(rng.choice((bytes, bytes, gzip.compress, lzma.compress))(plain.getvalue()))
        return str(folder / "m.umb"), {"reward_model": "cost"}, lambda: _meaning(_parsed(text), files)


def _parsed(text: str) -> dict[str, Any]:
    """The index, in which no key is given twice."""

    def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise Invalid("a key given twice")
        return dict(pairs)

    try:
        index = json.loads(text, object_pairs_hook=no_key_twice)
    except ValueError:
        raise Invalid("no JSON") from None
    if not isinstance(index, dict):
        raise Invalid("no object")
    return index
