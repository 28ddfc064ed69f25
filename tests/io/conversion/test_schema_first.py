"""What is known of a table before its first chunk: what is stated or counted is not written twice, and is held to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numcodecs
import pytest
from store_models import ModelProblem, ModelSource, random_model

import ooc_mdp
from ooc_mdp.errors import InputError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.problems.problem import Problem, RowBounds
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store.partition_entry import PartitionEntry
from ooc_mdp.store.partition_writer import PartitionWriter
from ooc_mdp.store.schema import TableSchema

WAITING = {"halo", "boundary", "successors"}
"""What halos decide: their own length, who reads a state, and the type of local successors."""
UNIFORM = random_model(5, 200, terminal=0.0, uniform=True, durations=True)
RAGGED = random_model(6, 200, durations=True, labels=True, initial_values=True)


@pytest.fixture
def written_again(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Fields of which a chunk is written in the second round."""
    names = set[str]()
    finish = PartitionWriter.finish

    def noting(self: PartitionWriter, entry: PartitionEntry, schema: TableSchema, boundary: Any) -> PartitionEntry:
        final = finish(self, entry, schema, boundary)
        names.update(name for name, chunk in final.chunks.items() if entry.chunks.get(name) != chunk)
        return final

    monkeypatch.setattr(PartitionWriter, "finish", noting)
    return names


@pytest.mark.parametrize("model", [UNIFORM, RAGGED], ids=["uniform", "ragged"])
def test_of_a_file_only_what_halos_decide_is_written_again(model: Any, tmp_path: Path, written_again: set[str]) -> None:
    convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=17))
    assert written_again <= WAITING


@pytest.mark.parametrize(
    "problem",
    [ModelProblem(UNIFORM), make_problem("random", {"states": 300}), make_problem("mountain-car", {"grid": "12,13"})],
    ids=lambda problem: problem.name,
)
def test_of_uniform_rows_only_what_halos_decide_is_written_again(
    problem: Problem, tmp_path: Path, written_again: set[str]
) -> None:
    generate(problem, tmp_path / "s", ConvertOptions(partitions=16, dtype=problem.default_dtype))
    assert written_again <= WAITING


class Stated(ModelProblem):
    """A model that states something else of its rows."""

    def __init__(self, model: Any, **stated: Any) -> None:
        super().__init__(model)
        self._stated = stated

    @property
    def row_bounds(self) -> RowBounds:
        return replace(super().row_bounds, **self._stated)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"max_actions": 2}, r"partition \d+, state \d+ has 3 actions; row_bounds states 2 at most"),
        ({"uniform_actions": True}, r"partition 0, state \d+ has \d actions; row_bounds states 3 for every state"),
        ({"max_successors": 1}, r"partition 0, state \d+, action \d has \d successors; row_bounds states 1 at most"),
        ({"uniform_successors": True}, r"action \d has \d successors; row_bounds states 4 for every row"),
        ({"optional": ("durations",)}, r"partition 0, state 0 has terminal_rewards; row_bounds states durations"),
        ({"optional": ()}, r"partition 0, state 0 has durations; row_bounds states no optional arrays"),
    ],
)
def test_a_partition_that_breaks_what_is_stated_is_refused(stated: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        generate(Stated(RAGGED, **stated), tmp_path / "s", ConvertOptions(partitions=10))
    assert list(tmp_path.iterdir()) == []


def test_a_stated_array_that_a_partition_lacks_is_stored_with_its_default(tmp_path: Path) -> None:
    bare = random_model(7, 60, terminal=0.0)
    stated = generate(Stated(bare, optional=("durations", "initial_values")), tmp_path / "s")
    plain = generate(ModelProblem(bare), tmp_path / "t")
    assert set(stated.fields) == set(plain.fields) | {"durations", "initial_values"}
    assert (stated.read(0)[0].durations == 1).all()
    assert (stated.read(0)[0].initial_values == 0).all()


@pytest.mark.skipif(numcodecs.__version__ != "0.16.6", reason="another version may compress to other bytes")
@pytest.mark.parametrize(
    ("name", "parameters", "partitions", "fingerprint"),
    [
        ("GW-24x4", {"seed": 1}, 16, "a669215466c1651dc2327234647e99fb8adab3a97c1f5230ee4dd43c391116ff"),
        ("QK-20", {"seed": 1}, 9, "fb5c13412e54a53a08ff278065493a94c94ec1e61dcd08dc7d83b25cd0690562"),
        (
            "random",
            {"states": 3000, "actions": 4, "successors": 7, "seed": 3},
            11,
            "37063370d82b5907994bcea0386c4b0c46d0a3f796fcf45b8a72ae55ead4c462",
        ),
        (
            "integer-mountain-car",
            {"scale": 1000},
            9,
            "83e1ee538ee7c6daeb50e61519954c297465b4e777f85279480654f9390b07d9",
        ),
    ],
)
def test_stores_have_the_fingerprints_of_format_4(
    name: str, parameters: dict[str, Any], partitions: int, fingerprint: str, tmp_path: Path
) -> None:
    assert ooc_mdp.generate(name, tmp_path / "s", parameters, partitions=partitions).fingerprint == fingerprint
