"""Every attribute of a store, virtual store, result and checkpoint, replaced and sealed again.

Each is refused with an error of the package, or has no effect on anything that is proved.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forge import seal

import ooc_mdp
from ooc_mdp.errors import OocMdpError
from ooc_mdp.io.export import export_result
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.layout import GROUP_FILE
from ooc_mdp.store.seal import digest_of
from ooc_mdp.store.sealed_file import read_sealed_file, write_sealed_file

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2, 0.5, -1.5, 1e308, 10**400, 1 << 63, "", "x", "max", "min", "0", [], [0], [[]], {}, {"x": 1},
)  # fmt: skip
DISCOUNT, EPSILON = 0.9, 1e-3


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a JSON document are, objects and the first two entries of lists included."""
    if path:
        yield path
    entries: Any = ()
    if isinstance(document, dict):
        entries = document.items()
    elif isinstance(document, list):
        entries = enumerate(document[:2])
    for key, value in entries:
        yield from places(value, (*path, key))


def altered(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value in one place."""
    document = copy.deepcopy(document)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document


def alterations(document: Any, seed: int, each: int) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Places and other values for them, some of each."""
    rng = np.random.default_rng(seed)
    for path in places(document):
        for i in rng.permutation(len(VALUES))[:each].tolist():
            yield path, VALUES[i]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a virtual store, results of both, and a checkpoint."""
    place = tmp_path_factory.mktemp("altered")
    ooc_mdp.generate("GW-8x4", place / "store", {"seed": 1}, partitions=3, threads=1)
    ooc_mdp.generate("mountain-car", place / "virtual", {"grid": "8,8"}, partitions=3, virtual=True)
    how: dict[str, Any] = {"device": "cpu", "method": "vi", "epsilon": EPSILON}
    ooc_mdp.solve(place / "store", DISCOUNT, output=place / "result", **how)
    ooc_mdp.solve(place / "store", DISCOUNT, output=place / "stopped", time_limit=1e-9, **how)
    return place


def solve_and_verify(store: Path, output: Path) -> None:
    """What is proved must hold; OocMdpError where something is refused."""
    shutil.rmtree(output, ignore_errors=True)
    table = ooc_mdp.open_store(store)
    solution = ooc_mdp.solve(table, DISCOUNT, device="cpu", method="vi", epsilon=EPSILON, output=output, overwrite=True)
    assert solution.outcome.proved
    assert ooc_mdp.verify(store, output).holds
    ooc_mdp.open_result(output)


def attempt(work: Any) -> bool:
    """Whether the work was done; False where it was refused."""
    try:
        work()
    except OocMdpError:
        return False
    return True


def read(root: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((root / GROUP_FILE).read_text())
    return document


def write_sealed(root: Path, document: dict[str, Any]) -> None:
    attributes = document["attributes"]
    attributes["digest"] = digest_of(attributes)
    (root / GROUP_FILE).write_text(json.dumps(document))


@pytest.mark.parametrize("each", [1, pytest.param(len(VALUES), marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["store", "virtual"])
def test_attributes_of_a_store(made: Path, tmp_path: Path, name: str, each: int) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(made / name, forged)
    document, refused = read(forged), 0
    for path, value in alterations(document["attributes"], 1, each):
        other = document | {"attributes": altered(document["attributes"], path, value)}
        try:
            if name == "store":
                seal(forged, other)
            else:
                write_sealed(forged, other)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
            write_sealed(forged, other)  # small arrays of other shapes, or of none
        refused += not attempt(lambda: solve_and_verify(forged, tmp_path / "r"))
    assert refused


@pytest.mark.parametrize("name", ["store", "virtual", "result"])
def test_a_refusal_of_an_attribute_is_short_and_printable(made: Path, tmp_path: Path, name: str) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(made / name, forged)
    document, refusals = read(forged), []
    for path in places(document["attributes"]):
        for value in ("z" * 5000, "\x1b[31m" * 1000, ["z"] * 5000, {"z" * 5000: 1}):
            write_sealed(forged, document | {"attributes": altered(document["attributes"], path, value)})
            try:
                ooc_mdp.open_result(forged) if name == "result" else ooc_mdp.open_store(forged)
            except OocMdpError as error:
                refusals.append(str(error))
    assert len(refusals) > 50
    assert [said for said in refusals if len(said) >= 1000 or not said.isprintable()] == []


@pytest.mark.parametrize("each", [4, pytest.param(len(VALUES), marks=pytest.mark.slow)])
def test_attributes_of_a_result(made: Path, tmp_path: Path, each: int) -> None:
    forged = tmp_path / "forged"
    shutil.copytree(made / "result", forged)
    document, refused = read(forged), 0
    for path, value in alterations(document["attributes"], 2, each):
        write_sealed(forged, document | {"attributes": altered(document["attributes"], path, value)})
        was_refused = not attempt(lambda: ooc_mdp.verify(made / "store", forged))
        opened = attempt(lambda: ooc_mdp.open_result(forged).solution.summary())
        assert attempt(lambda: export_result(ooc_mdp.open_result(forged), tmp_path / "r.npz")) == opened
        (tmp_path / "r.npz").unlink(missing_ok=True)
        refused += was_refused
        if opened:
            result = ooc_mdp.open_result(forged)
            assert 0 <= result.solution.discount <= 1
            assert result.identity["sense"] in ("max", "min")
    assert refused


@pytest.mark.parametrize("each", [2, pytest.param(len(VALUES), marks=pytest.mark.slow)])
def test_facts_of_a_checkpoint(made: Path, tmp_path: Path, each: int) -> None:
    kept = checkpoint_path(made / "stopped")
    title = kept.read_bytes().partition(b"\n")[0].decode()
    facts, arrays = read_sealed_file(kept, title)
    output, refused = tmp_path / "r", 0
    for path, value in alterations(facts, 3, each):
        shutil.rmtree(output, ignore_errors=True)
        checkpoint_path(output).unlink(missing_ok=True)
        write_sealed_file(checkpoint_path(output), title, altered(facts, path, value), arrays)

        def resume() -> None:
            how: dict[str, Any] = {"device": "cpu", "method": "vi", "epsilon": EPSILON, "output": output}
            assert ooc_mdp.solve(made / "store", DISCOUNT, resume=True, **how).outcome.proved
            assert ooc_mdp.verify(made / "store", output).holds

        refused += not attempt(resume)
    assert refused
