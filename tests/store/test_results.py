"""Results on disk: whole or not there, checked when read, in the order and sign of the source."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import ooc, process, refused

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.store import result_attributes
from ooc_mdp.store.result import open_result, write_result
from ooc_mdp.store.seal import digest_of

DISCOUNT = 0.9


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ooc_mdp.store.Store:  # type: ignore[name-defined]
    path = tmp_path_factory.mktemp("results") / "maze.store"
    return ooc_mdp.generate("GW-32x4", path, {"seed": 1}, partitions=16)


@pytest.fixture(scope="module")
def solution(store) -> ooc_mdp.Solution:
    return ooc_mdp.solve(store, DISCOUNT, device="cpu")


@pytest.fixture
def result(store, tmp_path: Path) -> Path:
    ooc_mdp.solve(store, DISCOUNT, device="cpu", output=tmp_path / "r")
    return tmp_path / "r"


def identity_of(store, discount: float = DISCOUNT) -> dict[str, Any]:
    return {"fingerprint": store.fingerprint, "sense": store.sense, "criterion": "discounted", "discount": discount}


def chunk_files(result: Path, field: str) -> list[Path]:
    return sorted(p for p in (result / field / "c").rglob("*") if p.is_file())


def test_a_result_is_read_back_as_it_was_returned(store, tmp_path):
    returned = ooc_mdp.solve(store, DISCOUNT, device="cpu", output=tmp_path / "r")
    kept = ooc_mdp.open_result(tmp_path / "r")
    np.testing.assert_array_equal(kept.solution.values, returned.values)
    np.testing.assert_array_equal(kept.solution.policy, returned.policy)
    assert kept.solution.summary() == {**returned.summary(), "compile_seconds": None}
    assert kept.identity == {
        "fingerprint": store.fingerprint,
        "sense": "max",
        "criterion": "discounted",
        "discount": DISCOUNT,
    }


@pytest.mark.parametrize(("end", "moved"), [("lower", 1e-3), ("upper", -1e-3)])
def test_ends_that_are_closer_than_the_proof_are_violated_claims(store, result, end, moved):
    claims = open_result(result).solution.certificate
    resealed(result, lambda a: a["solution"]["certificate"].update({end: getattr(claims, end) + moved}))
    assert ooc_mdp.verify(store, result).violated_claims == (end,)


@pytest.mark.parametrize("number", [np.float32, np.float16])
def test_a_result_is_written_whatever_kind_of_number_was_given(store, tmp_path, number):
    ooc_mdp.solve(store, number(0.5), residual=number(0.25), device="cpu", output=tmp_path / "r")
    assert open_result(tmp_path / "r").identity["discount"] == 0.5
    assert ooc_mdp.verify(store, tmp_path / "r").holds


def test_any_zarr_reader_opens_a_result(result):
    group = zarr.open_group(result, mode="r")
    assert group.attrs["format"] == "ooc-mdp-result"
    assert group["value"].dtype == np.float64
    assert group["policy"].dtype == np.int32
    np.testing.assert_array_equal(group["value"][:].reshape(-1), open_result(result).solution.values)
    for name in group:
        assert not isinstance(group[name], zarr.Array) or group[name][:].size > 0


def test_unknown_bounds_survive_as_what_they_are(store, solution, tmp_path):
    certificate = replace(solution.certificate, error_bound=math.inf, error_upper=math.inf, error_lower=-math.inf)
    write_result(tmp_path / "r", store, replace(solution, certificate=certificate), identity_of(store))
    assert open_result(tmp_path / "r").solution.certificate == certificate
    json.dumps(open_result(tmp_path / "r").solution.summary(), allow_nan=False)


@pytest.mark.parametrize("field", ["value", "policy"])
def test_a_changed_or_lost_byte_of_a_result_is_found(result, field):
    (chunk,) = chunk_files(result, field)
    whole = chunk.read_bytes()
    rng = np.random.default_rng(3)
    for _ in range(40):
        raw = bytearray(whole)
        raw[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
        chunk.write_bytes(raw)
        with pytest.raises(StoreError, match=f"{result} is damaged .*solve again"):
            open_result(result)
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        chunk.write_bytes(whole[:length])
        with pytest.raises(StoreError, match=f"{result} is damaged .*solve again"):
            open_result(result)
    chunk.unlink()
    with pytest.raises(StoreError, match=f"{result} is damaged .*solve again"):
        open_result(result)


def test_values_of_zero_are_not_taken_for_lost_ones(tmp_path):
    still = ooc_mdp.generate("random", tmp_path / "s", {"states": 20, "actions": 1, "seed": 0}, partitions=2)
    solved = ooc_mdp.solve(still, 0.5, device="cpu")
    write_result(
        tmp_path / "r",
        still,
        replace(solved, values=np.zeros(20), policy=np.zeros(20, np.int32)),
        identity_of(still, 0.5),
    )
    assert not open_result(tmp_path / "r").solution.values.any()


@pytest.mark.parametrize("lost", ["value", "policy", "zarr.json", "value/c", "value_chunks", "row/c/0"])
def test_a_result_that_lacks_a_part_is_refused(result, lost):
    path = result / lost
    path.rename(result.parent / "elsewhere")
    with pytest.raises(StoreError, match=str(result)):
        open_result(result)


def test_what_our_reader_does_not_use_may_be_lost_without_harm(result):
    before = open_result(result).solution.values
    (result / "value" / "zarr.json").unlink()
    np.testing.assert_array_equal(open_result(result).solution.values, before)


def resealed(result: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the attributes and seal them again, as somebody could who can write there."""
    document = json.loads((result / "zarr.json").read_text())
    change(document["attributes"])
    document["attributes"]["digest"] = digest_of(document["attributes"])
    (result / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("about"), "its attributes: missing: about"),
        (lambda a: a.update(invented=1), "its attributes: unknown: invented"),
        (lambda a: a["solution"].pop("certificate"), "solution: missing: certificate"),
        (lambda a: a["solution"]["certificate"].pop("error_bound"), "certificate: missing: error_bound"),
        (lambda a: a["solution"]["certificate"].update(error_bound="0"), "error_bound is '0'"),
        (lambda a: a["solution"].update(outcome="perfect"), "outcome is 'perfect', it must be proved or"),
        (lambda a: a["solution"]["statistics"].update(invented=1), "statistics: unknown: invented"),
        (lambda a: a["solution"]["statistics"].pop("loads"), "statistics: missing: loads"),
        (lambda a: a["solution"]["statistics"].update(n_states=1023), "16 blocks of 1024 states, not 16 of 1023"),
        (lambda a: a["solution"]["statistics"].update(workers=[{}]), "a worker's statistics: missing"),
        (lambda a: a["of"].update(fingerprint=7), "fingerprint is 7"),
        (lambda a: a["of"].pop("sense"), "of: missing: sense"),
        (lambda a: a["of"].pop("criterion"), "of: missing: criterion"),
        (lambda a: a["of"].update(stages=[1]), "of: stages is .1., it must be a number, a text, true, false or null"),
        (lambda a: a["solution"]["certificate"].update(quantity="size"), "quantity is 'size', it must be value or"),
        (lambda a: a["about"].update(geometry=None), "unknown arrays: column, row"),
        (lambda a: a["about"].pop("provenance"), "about: missing: provenance"),
        (lambda a: a["about"].update(partitions={"kind": "identity"}), "partitions is .*, it must be blocks of a grid"),
        (
            lambda a: a["about"].update(
                partitions={"kind": "grid", "shape": [4], "block_shape": [2], "edges": [[0, 2, 4]]}
            ),
            "partitions has 2 blocks of 4 states, not 16 of 1024",
        ),
        (lambda a: a["solution"].update(certificate=None), "solution: certificate is None, it must be an object"),
        (lambda a: a["arrays"].pop("policy"), "arrays_digest was made of"),
        (lambda a: a["arrays"]["value"].update(chunks=[1, 1]), "value_chunks"),
        (lambda a: a["arrays"]["value"].update(chunks=[32, 1]), "describes 'value' as"),
        (lambda a: a["arrays"]["value"].update(shape=[1 << 61, 32]), "value_chunks"),
        (lambda a: a["arrays"]["value"].update(dtype="object"), "describes 'value' as"),
        (lambda a: a["arrays"].update({"../x": a["arrays"]["value"]}), r"describes '../x' as"),
    ],
)
def test_attributes_that_are_not_those_of_a_result_are_refused_even_if_they_are_sealed(result, change, said):
    resealed(result, change)
    with pytest.raises(StoreError, match=rf"the result {result} is damaged \(.*{said}.*; solve again"):
        open_result(result)


def test_a_result_has_the_blocks_of_its_partitions(store, result):
    assert open_result(result).partitions == store.facts.attributes["state_order"]


@pytest.mark.parametrize(("measured", "kept"), [(123 << 20, 123 << 20), (0, None)])
def test_a_result_has_the_peak_memory_of_its_process(store, solution, tmp_path, monkeypatch, measured, kept):
    monkeypatch.setattr(result_attributes, "peak_bytes", lambda: measured)
    write_result(tmp_path / "r", store, solution, identity_of(store))
    assert open_result(tmp_path / "r").peak_memory_bytes == kept


def test_a_result_of_an_earlier_format_with_later_names_is_refused(result):
    resealed(result, lambda a: a.update(format_version=4))
    with pytest.raises(StoreError, match="of: unknown: criterion"):
        open_result(result)
    resealed(result, lambda a: (without_names_of_5(a), a.update(format_version=3)))
    with pytest.raises(StoreError, match="about: unknown: partitions, peak_memory_bytes"):
        open_result(result)


def without_names_of_5(attributes: dict[str, Any]) -> None:
    del attributes["of"]["criterion"]
    for name in ("quantity", "lower", "upper"):
        del attributes["solution"]["certificate"][name]


def test_a_result_of_format_4_is_read_as_one_of_the_criterion_that_its_discount_shows(result, store):
    resealed(result, lambda a: (without_names_of_5(a), a.update(format_version=4)))
    opened = open_result(result)
    assert opened.identity["criterion"] == opened.solution.criterion["criterion"] == "discounted"
    claims = opened.solution.certificate
    assert (claims.quantity, claims.lower, claims.upper) == ("value", -np.inf, np.inf)
    assert ooc_mdp.verify(store, result).holds
    again = ooc_mdp.solve(store, DISCOUNT, device="cpu", output=result, resume=True)
    np.testing.assert_array_equal(again.values, opened.values)


def test_a_result_of_format_3_is_read_without_partitions(result):
    def of_format_3(attributes: dict[str, Any]) -> None:
        attributes["format_version"] = 3
        without_names_of_5(attributes)
        del attributes["about"]["partitions"], attributes["about"]["peak_memory_bytes"]

    values = open_result(result).values
    resealed(result, of_format_3)
    opened = open_result(result)
    assert (opened.partitions, opened.peak_memory_bytes) == (None, None)
    np.testing.assert_array_equal(opened.values, values)


def test_a_result_of_format_5_without_partitions_is_refused(result):
    resealed(result, lambda a: a["about"].pop("partitions"))
    with pytest.raises(StoreError, match="about: missing: partitions"):
        open_result(result)


def test_a_changed_attribute_is_refused_by_the_digest(result):
    document = json.loads((result / "zarr.json").read_text())
    document["attributes"]["solution"]["certificate"]["error_bound"] /= 2
    (result / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"its attributes are not those that were sealed"):
        open_result(result)


@pytest.mark.parametrize("version", [2, 6, True, None])
def test_a_result_of_another_version_is_refused_and_replaced_only_if_the_user_says_so(store, result, version):
    attributes = {"format": "ooc-mdp-result", "format_version": version, "identity": {}}
    (result / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}))
    with pytest.raises(StoreError, match=f"is a result of version {version}, this release reads 3, 4, 5; solve again"):
        open_result(result)
    with pytest.raises(StoreError, match="exists; name another output, or replace it with --overwrite"):
        ooc_mdp.solve(store, DISCOUNT, device="cpu", output=result)
    ooc_mdp.solve(store, DISCOUNT, device="cpu", output=result, overwrite=True)
    assert open_result(result).solution.outcome.proved


@pytest.mark.parametrize("name", ["zarr.json", "value/c/0/0", "policy_chunks/c/0/0"])
def test_a_pipe_or_a_huge_file_in_a_results_file_is_refused_without_waiting(result, name):
    (result / name).unlink()
    os.mkfifo(result / name)
    with pytest.raises(StoreError, match="it is not a regular file"):
        open_result(result)
    (result / name).unlink()
    (result / name).touch()
    os.truncate(result / name, 1 << 40)
    with pytest.raises(StoreError, match=rf"it has {1 << 40} bytes, at most \d+ are expected"):
        open_result(result)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"attributes": 3}', '{"attributes": {"format": "ooc-mdp"}}'])
def test_a_group_file_that_is_no_results_is_refused(result, text):
    (result / "zarr.json").write_text(text)
    with pytest.raises(StoreError, match="is no result"):
        open_result(result)


def test_a_full_disk_leaves_no_result_and_the_previous_one(store, result):
    """A limit on the size of files stands in for a full disk: the values need about 9 KiB."""
    before = open_result(result).solution.values
    solving = ("solve", store.path, "--discount", 0.95, "--epsilon", 1e-6, "--device", "cpu", "--output")
    for output, options in ((result, ["--overwrite"]), (result.with_name("new"), [])):
        ran = process(*solving, output, *options, limit="-f 2")
        assert ran.status == 2, ran
        assert "no room (File too large)" in ran.err
        assert "Traceback" not in ran.err
    np.testing.assert_array_equal(open_result(result).solution.values, before)
    assert sorted(p.name for p in result.parent.iterdir()) == ["r"]


def test_a_policy_is_kept_and_exported_in_the_sources_numbers_of_actions_too(tmp_path):
    """In state 0 action 7 pays most, in state 1 action 3 does; state 2 ends the process."""
    (tmp_path / "m.txt").write_text(
        "S:0:0:2\nA:4:1\nD:1:1.0:0\nA:7:1\nD:2:1.0:9\nS:1:0:2\nA:0:1\nD:0:1.0:-4\nA:3:1\nD:2:1.0:8\nS:2:0:0\n"
    )
    store = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s", partitions=2)
    ooc_mdp.solve(store, DISCOUNT, device="cpu", output=tmp_path / "r")
    kept = open_result(tmp_path / "r")
    assert kept.solution.policy.tolist() == [1, 1, -1]
    assert kept.actions.tolist() == [7, 3, -1]
    assert ooc("export", tmp_path / "r", tmp_path / "x.csv").status == 0
    lines = ["state,value,policy,action", "0,9.0,1,7", "1,8.0,1,3", "2,0.0,-1,-1"]
    assert (tmp_path / "x.csv").read_text().split() == lines
    assert ooc("export", tmp_path / "r", tmp_path / "x.npz").status == 0
    with np.load(tmp_path / "x.npz") as file:
        assert file["action"].tolist() == [7, 3, -1]


def test_where_actions_are_numbered_from_0_an_export_has_no_column_for_it(result, tmp_path):
    kept = open_result(result)
    assert kept.actions.tolist() == kept.policy.tolist()
    assert ooc("export", result, tmp_path / "x.csv").status == 0
    header = (tmp_path / "x.csv").read_text().splitlines()[0].split(",")
    assert header[0] == "state"
    assert header[-2:] == ["value", "policy"]


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv"])
def test_a_full_disk_leaves_no_export(result, tmp_path, suffix):
    file = tmp_path / f"x.{suffix}"
    ran = process("export", result, file, limit="-f 2")
    assert ran.status == 2, ran
    assert f"cannot write {file}: " in ran.err
    assert "File too large" in ran.err or "no room" in ran.err
    assert "; make room, or name a file elsewhere" in ran.err
    assert "Traceback" not in ran.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r"]


def test_an_export_that_is_in_its_place_is_not_called_unwritten(result, tmp_path, monkeypatch):
    def broken(path: Path) -> None:
        if path == tmp_path:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("ooc_mdp.store.atomic_file.fsync_path", broken)
    ran = ooc("export", result, tmp_path / "x.npy")
    assert ran.status == 2
    assert "x.npy is complete and in its place, but may be lost if the power fails: Input/output error" in ran.err
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), open_result(result).solution.values)


def test_a_symbolic_link_is_not_replaced(store, result):
    link = result.with_name("link")
    os.symlink(result, link)
    said = refused("solve", store.path, "--discount", DISCOUNT, "--device", "cpu", "--output", link, "--overwrite")
    assert "symbolic link" in said
    assert "memory plan" not in said
    assert ooc("verify", store.path, link).status == 0


def test_no_result_is_written_into_a_store(store):
    said = refused("solve", store.path, "--discount", DISCOUNT, "--device", "cpu", "--output", store.path / "r")
    assert f"would lie inside {store.path.resolve()}" in said
    assert "memory plan" not in said


def test_a_minimisation_is_kept_in_the_sign_of_the_source(tmp_path):
    largest = ooc_mdp.generate("random", tmp_path / "max", {"states": 30, "actions": 3, "seed": 4})
    smallest = ooc_mdp.generate("random", tmp_path / "min", {"states": 30, "actions": 3, "seed": 4}, sense="min")
    high = ooc_mdp.solve(largest, 0.9, epsilon=1e-8, device="cpu", output=tmp_path / "high")
    low = ooc_mdp.solve(smallest, 0.9, epsilon=1e-8, device="cpu", output=tmp_path / "low")
    assert (high.values >= low.values).all()
    assert (high.values > low.values).any()
    assert open_result(tmp_path / "low").solution.values.tolist() == low.values.tolist()
    assert ooc("verify", tmp_path / "min", tmp_path / "low").status == 0
