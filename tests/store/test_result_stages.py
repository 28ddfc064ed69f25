"""The stages of a result: chunks of several stages or of parts of one, and damage that is found when they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.store.seal import digest_of, hash_of
from ooc_mdp.store.sealed_group import SealedGroup

STAGES, KEPT = 11, (0, 4, 11)


@pytest.fixture(params=[1 << 20, 200, 50], ids=["one chunk", "several stages a chunk", "parts of a stage"])
def result(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a world of 8 x 8 cells."""
    monkeypatch.setattr("ooc_mdp.store.slabs.MAX_ELEMENTS", request.param)
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=3)
    asked = ooc_mdp.FiniteHorizon(STAGES, 0.9, np.arange(64.0), KEPT)
    ooc_mdp.solve(store, asked, device="cpu", output=tmp_path / "r")
    return tmp_path / "r"


def read(path: Path) -> list[Any]:
    solution = ooc_mdp.open_result(path).solution
    assert solution.stages is not None
    assert solution.stages.read_final is not None
    policies = [solution.stages.policy(stage).tolist() for stage in range(STAGES)]
    return [policies, [solution.stages.values(stage).tolist() for stage in KEPT], solution.stages.read_final().tolist()]


def test_any_zarr_reader_sees_the_stages_as_this_one_does(result: Path) -> None:
    group: Any = zarr.open_group(result, mode="r")
    policies, values, final = read(result)
    assert group["stage_policy"].dtype == np.uint8
    assert group["stage_policy"].metadata.dimension_names == ("stage", "row", "column")
    assert group["stage_value"].metadata.dimension_names == ("kept_stage", "row", "column")
    stored = group["stage_policy"][:].reshape(STAGES, 64).astype(int)
    assert np.where(stored == 255, -1, stored).tolist() == policies
    assert group["stage_value"][:].reshape(3, 64).tolist() == values
    assert group["kept_stage"][:].tolist() == list(KEPT)
    assert group["final_value"][:].ravel().tolist() == final == np.arange(64.0).tolist()
    assert group["stage_error"][:].shape == (STAGES + 1,)


@pytest.mark.parametrize("name", ["stage_policy", "stage_value", "final_value"])
def test_a_changed_or_missing_chunk_of_stages_is_refused_when_it_is_read(result: Path, name: str) -> None:
    files = sorted(path for path in (result / name / "c").rglob("*") if path.is_file())
    assert files
    for file in files:
        whole = file.read_bytes()
        for damaged in (whole[:-1], whole[:20] + bytes([whole[20] ^ 1]) + whole[21:], None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            with pytest.raises(StoreError, match=rf"the result {result} is damaged \({name}/c"):
                read(result)
            file.write_bytes(whole)
    read(result)


def resealed(result: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the attributes list of arrays, and seal it again, as somebody could who can write there."""
    document = json.loads((result / "zarr.json").read_text())
    attributes = document["attributes"]
    small = dict(SealedGroup(result, attributes).small)
    change(attributes["arrays"])
    small = {name: small[name] for name in small if name.removesuffix("_chunks") in attributes["arrays"]}
    attributes["arrays_digest"] = hash_of("ooc-mdp arrays", attributes["arrays"], small)
    attributes["digest"] = digest_of(attributes)
    (result / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda arrays: arrays.pop("kept_stage"), "missing: kept_stage"),
        (lambda arrays: arrays["stage_policy"].update(dtype="float64"), "stage_policy is float64"),
        (lambda arrays: arrays.pop("stage_value"), "stage_value is there without kept stages, or missing"),
        (lambda arrays: arrays.pop("stage_policy"), "unknown arrays"),
    ],
)
def test_stages_that_do_not_belong_together_are_refused(
    result: Path, change: Callable[[dict[str, Any]], None], said: str
) -> None:
    resealed(result, change)
    with pytest.raises(StoreError, match=said):
        ooc_mdp.open_result(result)


def test_a_solution_reads_its_stages_from_the_result_that_was_written(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=3)
    asked = ooc_mdp.FiniteHorizon(STAGES, kept_stages=(4,))
    there, here = (ooc_mdp.solve(store, asked, device="cpu", output=output) for output in (tmp_path / "r", None))
    assert there.stages is not None
    assert here.stages is not None
    assert there.stages.policy(3).tolist() == here.stages.policy(3).tolist()
    assert there.stages.values(4).tolist() == here.stages.values(4).tolist()
    again = ooc_mdp.solve(store, asked, device="cpu", output=tmp_path / "r", resume=True)
    assert again.statistics == there.statistics
