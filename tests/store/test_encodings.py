"""Encodings of fields: exact both ways, readable by anyone with the documentation, and absent from format 1."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from altered_stores import with_values
from forge import chunk_path, reseal, seal, write_small
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import DOCS
from row_layouts import layouts
from store_models import Action, Model, ModelProblem, ModelSource, State, model_in, random_model

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.model.mdp import Rows
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import Store, check_store, chunk_reads, inspect_store, open_store
from ooc_mdp.store.encodings import InexactWeights, RowLayout, decode, encode, stored_count
from ooc_mdp.store.layout import FIELDS, PartitionSizes

UNIT = 2.0**-24


class Exact(ModelProblem):
    """A model whose probabilities are rounded to the unit, the last of each row taking up the rest."""

    dyadic_probabilities = True

    def rows(self, states: np.ndarray) -> Rows:
        rows = super().rows(states)
        for lo, hi in itertools.pairwise(rows.successor_ptr):
            rows.probabilities[lo : hi - 1] = np.floor(rows.probabilities[lo : hi - 1] / UNIT) * UNIT
            rows.probabilities[hi - 1] = 1.0 - rows.probabilities[lo : hi - 1].sum()
        return rows


@settings(deadline=None)
@given(layout=layouts(), dtype=st.sampled_from(["u1", "u2", "u4"]), seed=st.integers(0, 2**32))
def test_any_successors_come_back_from_their_differences(layout: RowLayout, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, np.iinfo(dtype).max, layout.sizes.transitions, dtype, endpoint=True)
    stored = encode("row-delta", values, layout)
    assert stored.dtype == values.dtype
    np.testing.assert_array_equal(decode("row-delta", stored, values.dtype, layout), values)


@settings(deadline=None)
@given(data=st.data(), uniform=st.booleans(), dtype=st.sampled_from(["f4", "f8"]), seed=st.integers(0, 2**32))
def test_any_weights_come_back_without_the_last_of_each_row(
    data: st.DataObject, uniform: bool, dtype: str, seed: int
) -> None:
    layout = data.draw(layouts(uniform))
    rng = np.random.default_rng(seed)
    begin = np.arange(layout.sizes.rows + 1) * layout.width if uniform else layout.successor_ptr
    values = np.empty(layout.sizes.transitions)
    for lo, hi in itertools.pairwise(begin):
        cuts = np.sort(rng.integers(0, 2**24, hi - lo - 1, endpoint=True)) * UNIT
        values[lo:hi] = np.diff(cuts, prepend=0.0, append=1.0)
    encoding = "fixed24-delta2" if uniform else "fixed24"
    stored = encode(encoding, values.astype(dtype), layout)
    assert stored.size == stored_count(values.size, encoding, layout.sizes) == values.size - layout.sizes.rows
    np.testing.assert_array_equal(decode(encoding, stored, np.dtype(dtype), layout), values)


@settings(deadline=None)
@given(layout=layouts(True), seed=st.integers(0, 2**32))
def test_any_float32_durations_come_back_from_their_bits(layout: RowLayout, seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0, 0x7F800000, layout.sizes.rows, np.uint32, endpoint=True)
    values = bits.view(np.float32).astype(np.float64)
    stored = encode("float32-delta2", values, layout)
    np.testing.assert_array_equal(decode("float32-delta2", stored, np.dtype(np.float64), layout), values)


@pytest.mark.parametrize("row", [[0.5, 0.25], [UNIT / 2, 1 - UNIT / 2], [1.5, -0.5], [np.nan, 0.5], [0.1, 0.9]])
def test_weights_that_are_no_multiples_of_the_unit_are_refused(row: list[float]) -> None:
    layout = RowLayout(PartitionSizes(2, 2, 4, 0), 1, 2)
    with pytest.raises(InexactWeights) as error:
        encode("fixed24", np.array([0.5, 0.5, *row]), layout)
    assert error.value.row == 1


def car(tmp_path: Path, **options: Any) -> Store:
    problem = make_problem("mountain-car", {"grid": "40,30"})
    return generate(problem, tmp_path / "s", ConvertOptions(partition_shape=(13, 11), **options))


def stores() -> dict[str, Callable[[Path], Store]]:
    """One of each kind: uniform and exact, ragged and exact, ragged and not, durations that need float64."""
    lengths = Model((State((Action(1.0, {0: 1.0}, duration=0.1),)),) * 3, durations=True)
    return {
        "control": car,
        "control in float32": lambda path: car(path, dtype="float32"),
        "ragged weights": lambda path: generate(
            Exact(random_model(3, 70, durations=True)), path / "s", ConvertOptions(partitions=5)
        ),
        "converted": lambda path: convert(
            ModelSource(random_model(4, 70, durations=True)), path / "s", ConvertOptions(partitions=5)
        ),
        "gridworld": lambda path: generate(make_problem("GW-12x4"), path / "s", ConvertOptions(partitions=4)),
        "long durations": lambda path: convert(ModelSource(lengths), path / "s", ConvertOptions(partitions=2)),
    }


@pytest.fixture(params=stores())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return stores()[request.param](tmp_path)


def test_the_documented_decoding_gives_every_table_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "reference" / "store-format.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    assert example.count("p = 0") == 1
    store.path.rename(store.path.parent / "model.store")
    monkeypatch.chdir(store.path.parent)
    opened = open_store("model.store")
    for p in range(opened.n_partitions):
        names: dict[str, Any] = {}
        exec(example.replace("p = 0", f"p = {p}"), names)
        table, _ = opened.read(p)
        for name in ("successors", "probabilities"):
            np.testing.assert_array_equal(names[name], getattr(table, name), strict=True)
        if table.durations.size:
            np.testing.assert_array_equal(names["durations"], table.durations, strict=True)


def test_chunks_that_are_decoded_together_are_those_that_are_read_one_by_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a chunk is read by itself")

    with monkeypatch.context() as patch:
        patch.setattr("ooc_mdp.store.reader.read_frame_file", refuse)
        together = [store.read(p) for p in range(store.n_partitions)]
    for missing in ("crc32c_address", "decompress_address"):  # of a library that does not lead to it
        with monkeypatch.context() as patch:
            patch.setattr(chunk_reads, missing, lambda: None)
            patch.setattr(chunk_reads, "_compiled_decompression", chunk_reads._compiled_decompression.__wrapped__)
            alone = [store.read(p) for p in range(store.n_partitions)]
        for (table, n_bytes), (other, bytes_alone) in zip(together, alone, strict=True):
            assert n_bytes == bytes_alone == store.chunk_bytes[table.index]
            for name, array in vars_of(table).items():
                np.testing.assert_array_equal(array, vars_of(other)[name], strict=True)


def vars_of(table: PartitionTable) -> dict[str, np.ndarray]:
    """The arrays of a table by name."""
    return {f.name: array for f in fields(table) if isinstance(array := getattr(table, f.name), np.ndarray)}


def test_every_table_is_what_its_source_gave_and_valid(tmp_path: Path) -> None:
    problem = make_problem("mountain-car", {"grid": "40,30"})
    store = car(tmp_path, dtype="float32")
    for p in range(store.n_partitions):
        rows, (table, _) = problem.rows(store.original_states(p)), store.read(p)
        np.testing.assert_array_equal(table.probabilities, rows.probabilities)
        np.testing.assert_array_equal(table.durations, rows.durations)
        assert table.nbytes == store.facts.partition_bytes[p]
    assert check_store(store).findings == ()
    assert store.facts.attributes["encodings"] == {
        "successors": "row-delta",
        "probabilities": "fixed24-delta2",
        "durations": "float32-delta2",
    }
    assert store.scratch_bytes >= 4 * (store.facts.partition_transitions - store.facts.partition_rows).max()


def test_ragged_rows_and_long_durations_are_stored_as_they_can_be(tmp_path: Path) -> None:
    ragged = stores()["ragged weights"](tmp_path / "a") if (tmp_path / "a").mkdir() is None else None
    assert ragged is not None
    assert ragged.facts.attributes["encodings"] == {"successors": "row-delta", "probabilities": "fixed24"}
    assert ragged.fields["durations"].stored == np.float32
    assert model_in(ragged).states != ()
    (tmp_path / "b").mkdir()
    long = stores()["long durations"](tmp_path / "b")
    assert long.fields["durations"].stored == np.float64
    assert long.fields["durations"].encoding is None


def test_a_last_partition_may_change_how_all_are_stored(tmp_path: Path) -> None:
    plain = Action(0.5, {0: 0.5, 1: 0.5}, duration=0.5)
    odd = Action(0.5, {0: 0.25, 1: 0.5, 2: 0.25}, duration=0.1)
    model = Model((*(State((plain, plain)) for _ in range(300)), State((odd,))), durations=True)
    store = generate(Exact(model), tmp_path / "s", ConvertOptions(partitions=3, threads=1))
    assert store.facts.attributes["encodings"] == {"successors": "row-delta", "probabilities": "fixed24"}
    assert store.fields["durations"].stored == np.float64
    assert store.fields["successors"].dtype == np.uint8
    found = model_in(store)
    assert [a.successors for s in found.states for a in s.actions] == [
        a.successors for s in model.states for a in s.actions
    ]
    assert [a.duration for s in found.states for a in s.actions] == [
        a.duration for s in model.states for a in s.actions
    ]
    assert check_store(store).findings == ()


def test_a_problem_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    class Wrong(ModelProblem):
        dyadic_probabilities = True

    with pytest.raises(StoreError, match=r"local row \d+ of partition \d is not made of multiples of 2\*\*-24"):
        generate(Wrong(Model((State((Action(0.0, {0: 0.9, 1: 0.1}),)),) * 4)), tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [1, 2, 3])
def test_stores_of_older_formats_are_refused_with_the_remedy(store: Store, version: int) -> None:
    reseal(store.path, lambda attributes: attributes.update(format_version=version))
    with pytest.raises(StoreError, match=rf"format version {version}, this program reads 4; make the store again"):
        open_store(store.path)


def test_an_unknown_encoding_or_one_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    store = car(tmp_path)
    original = (store.path / "zarr.json").read_text()

    def with_field(name: str, **changes: Any) -> None:
        (store.path / "zarr.json").write_text(original)
        reseal(store.path, lambda attributes: attributes["table"]["fields"][name].update(changes))

    with_field("successors", encoding="braids")
    with pytest.raises(StoreError, match=r"successors of .* is encoded as 'braids', which this program does not know"):
        open_store(store.path)
    with_field("probabilities", encoding=None)
    with pytest.raises(StoreError, match=r"field probabilities of .* is stored as 'uint32'"):
        open_store(store.path)
    with_field("probabilities", max_len=3)
    with pytest.raises(StoreError, match="max_len"):
        open_store(store.path)
    (store.path / "zarr.json").write_text(original)
    reseal(store.path, lambda attributes: attributes["table"].update(actions_per_state=0))
    with pytest.raises(StoreError, match=r"probabilities of .* is encoded as 'fixed24-delta2' of rows that differ"):
        open_store(store.path)


def test_sizes_that_contradict_each_other_are_refused_before_decoding(tmp_path: Path) -> None:
    store = car(tmp_path)
    store.facts.partition_rows[0] -= 1
    with pytest.raises(StoreError, match="field successors of partition 0 cannot be decoded: 143 times 3 is not 428"):
        store.read_field("successors", 0)


def test_rows_without_transitions_are_refused_before_a_last_weight_is_decoded(tmp_path: Path) -> None:
    actions = tuple(Action(float(i), dict.fromkeys(range(2**i), 2.0 ** (-i))) for i in range(3))
    model = Model((State(actions), *(State((Action(0.0, {i: 1.0}),)) for i in range(1, 4))))
    store = generate(Exact(model), tmp_path / "whole", ConvertOptions(partitions=1, threads=1))
    assert store.fields["probabilities"].encoding == "fixed24"

    def empty(pointers: np.ndarray) -> None:
        pointers[1:3] = 0

    path = with_values(store, tmp_path / "forged", "successor_ptr", 0, empty)
    write_small(path, "max_successors", np.array([7]))
    seal(path)
    forged = open_store(path)
    with pytest.raises(StoreError, match="successor_ptr does not rise from 0 to 10 by at least 1 each"):
        forged.read(0)
    with pytest.raises(StoreError, match="successor_ptr does not rise from 0 to 10 by at least 1 each"):
        forged.read_field("probabilities", 0)


def test_zarr_reads_what_is_stored_and_inspect_says_what_it_stands_for(tmp_path: Path) -> None:
    store = car(tmp_path, dtype="float32")
    raw = zarr.open_group(store.path, mode="r")
    for name in ("probabilities", "durations"):
        assert {array.dtype for _, array in raw[name].arrays()} == {np.dtype(np.uint32)}
    report = inspect_store(store)
    for name, field in report["fields"].items():
        assert field["encoding"] == store.facts.attributes["encodings"].get(name)
        assert field["stored_bytes_per_transition"] == field["stored_bytes"] / store.n_transitions
        assert field["decoded_bytes_per_transition"] == field["decoded_bytes"] / store.n_transitions
    assert report["fields"]["durations"]["decoded_bytes"] == 8 * store.n_rows
    assert report["fields"]["probabilities"]["decoded_bytes"] == 4 * store.n_transitions
    assert report["decoded_bytes"] == sum(store.read(p)[0].nbytes for p in range(store.n_partitions))


def test_encoded_fields_are_compressed_as_their_metadata_says_and_as_a_device_decompresses(tmp_path):
    """zarr-python checks no codec's level, so that only a test can; a device knows LZ4 alone."""
    control = ooc_mdp.generate("mountain-car", tmp_path / "c", {"grid": "12,12"}, partitions=4, device="cpu")
    plain = ooc_mdp.generate("random", tmp_path / "p", {"states": 40, "seed": 1}, partitions=4)
    for store in (control, plain):
        assert all(field.compressed for field in store.facts.stored_fields)
        for name, meta in store.fields.items():
            array = (store.path / store.chunk_name(name, 0)).parent
            saved = json.loads((array / "zarr.json").read_text())["codecs"]
            blosc = next(codec["configuration"] for codec in saved if codec["name"] == "blosc")
            codec = FIELDS[name].codec(meta.encoding)
            assert (blosc["cname"], blosc["clevel"], blosc["shuffle"]) == (codec.cname, codec.clevel, codec.shuffle)
            frame = np.fromfile(chunk_path(store.path, name, 0), np.uint8)
            assert bool(frame[2] & 1) == (codec.shuffle == "shuffle" and meta.stored.itemsize > 1) or frame[2] & 2
    assert control.fields["probabilities"].cname == "lz4hc"
    assert plain.fields["probabilities"].cname == "lz4", "nothing is gained by searching in noise"
