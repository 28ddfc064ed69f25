from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from forge import accept, chunk_path, read_small, reseal, write_frame, write_small
from hypothesis import given
from hypothesis import strategies as st
from paths import DOCS
from store_models import ModelSource, random_model
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.store import Store, check_store, inspect_store, open_store
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.layout import BLOCK_BYTES, FIELDS, SMALL_ARRAYS, padded_length, small_chunk_name
from ooc_mdp.store.mark import MARK_FILE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    model = random_model(5, 60, durations=True, labels=True, initial_values=True)
    return convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=4))


def test_small_arrays_are_what_zarr_reads(store: Store) -> None:
    group = zarr.open_group(store.path, mode="r")
    assert (set(group.group_keys()), set(group.array_keys())) == (set(store.fields), set(SMALL_ARRAYS))
    for name in SMALL_ARRAYS:
        owner = {"coupling": store.facts.coupling, "chunk": store.manifest}.get(name.split("_")[0])
        held = getattr(owner, name.split("_", 1)[1]) if owner and name != "chunk_bytes" else None
        if held is None:
            held = getattr(store if name == "chunk_bytes" else store.facts, name)
        np.testing.assert_array_equal(group[name][...], held)
    attributes = dict(group.attrs)
    assert set(attributes) == {"format", "format_version", "table", "about", "fingerprint", "digest"}
    for name, value in {**attributes["table"], **attributes["about"]}.items():
        assert name == "fields" or store.facts.attributes.get(name) == value


def test_a_store_is_shown_in_one_line(store: Store) -> None:
    shown = repr(store)
    assert shown.startswith(f"<Store {store.path}: {store.n_states:,} states, {store.n_partitions} partitions, ")
    assert len(shown.splitlines()) == 1


def test_the_manifest_has_what_sha256sum_prints(store: Store) -> None:
    group = zarr.open_group(store.path, mode="r")
    assert list(group.attrs["table"]["fields"]) == list(store.manifest.fields)
    for i, name in enumerate(store.manifest.fields):
        for p in range(4):
            content = chunk_path(store.path, name, p).read_bytes()
            assert group["chunk_lengths"][p, i] == len(content)
            assert group["chunk_crc32c"][p, i] == int.from_bytes(content[-4:], "little")
            assert bytes(group["chunk_sha256"][p, i]).hex() == hashlib.sha256(content).hexdigest()


def arrays_of(store: Store) -> list[tuple[str, int]]:
    """Field and padded length of every array that holds chunks."""
    return sorted(
        {
            (name, padded_length(store.stored_values(name, p)))
            for name in store.fields
            for p in range(store.n_partitions)
        }
    )


def test_metadata_are_byte_for_byte_what_zarr_writes(store: Store, tmp_path: Path) -> None:
    arrays = {f"{name}/{length}": (store.fields[name], length) for name, length in arrays_of(store)}
    for name in store.fields:
        zarr.create_group(tmp_path / "zarr" / name)
    for path, (meta, length) in arrays.items():
        codec = meta.field.codec(meta.encoding)
        blosc = BloscCodec(
            typesize=meta.stored.itemsize,
            cname=codec.cname,
            clevel=codec.clevel,
            shuffle=codec.shuffle,
            blocksize=BLOCK_BYTES,
        )
        zarr.create_array(
            tmp_path / "zarr" / path,
            shape=(store.n_partitions, length),
            chunks=(1, length),
            chunk_key_encoding={"name": "default", "separator": "."},
            dtype=meta.stored,
            serializer=BytesCodec(),
            compressors=(blosc, Crc32cCodec()),
            filters=None,
            fill_value=0,
        )
    for name, (dtype, *_) in SMALL_ARRAYS.items():
        shape = zarr.open_array(store.path / name, mode="r").shape
        zarr.create_array(
            tmp_path / "zarr" / name,
            shape=shape,
            chunks=shape,
            dtype=dtype,
            serializer=BytesCodec(),
            compressors=(Crc32cCodec(),),
            filters=None,
            fill_value=0,
        )
    for name in (*store.fields, *arrays, *SMALL_ARRAYS):
        assert (store.path / name / "zarr.json").read_bytes() == (tmp_path / "zarr" / name / "zarr.json").read_bytes()


def test_every_chunk_has_its_file_even_where_it_is_all_padding(store: Store) -> None:
    for name in store.fields:
        assert sorted(p.name for p in store.path.glob(f"{name}/*/c.*")) == ["c.0.0", "c.1.0", "c.2.0", "c.3.0"]


def test_many_threads_read_the_same_tables(store: Store) -> None:
    expected = [store.read(p)[0].successors.tobytes() for p in range(4)]
    wrong: list[int] = []

    def read_all(offset: int) -> None:
        for i in range(100):
            p = (i + offset) % 4
            if store.read(p)[0].successors.tobytes() != expected[p]:
                wrong.append(p)

    threads = [threading.Thread(target=read_all, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize("name", [f.name for f in FIELDS.values() if f.read and f.name != "original_state"])
@pytest.mark.parametrize("where", [0, 5, -1])
def test_a_flipped_bit_is_found_by_read_and_by_check(store: Store, name: str, where: int) -> None:
    path = chunk_path(store.path, name, 2)
    damaged = bytearray(path.read_bytes())
    damaged[where] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=rf"{name} of partition 2 is damaged in .*{name}.*make the store again"):
        store.read(2)
    store.read(1)
    assert [(f.field, f.partition) for f in check_store(store).findings] == [(name, 2)]


def test_a_truncated_chunk_is_damaged_and_a_lost_one_missing(store: Store) -> None:
    path = chunk_path(store.path, "halo", 1)
    path.write_bytes(path.read_bytes()[:2])
    with pytest.raises(StoreError, match="halo of partition 1 is damaged"):
        store.read(1)
    path.unlink()
    with pytest.raises(StoreError, match=r"halo of partition 1 is missing.*make the store again"):
        store.read(1)
    assert {(f.field, f.partition) for f in check_store(store).findings} == {("halo", 1)}


def test_a_small_array_that_is_damaged_or_missing_stops_opening(store: Store) -> None:
    path = store.path / small_chunk_name("coupling_mass")
    path.write_bytes(b"\0" + path.read_bytes()[1:-1] + b"\0")
    with pytest.raises(StoreError, match=r"coupling_mass of .* is damaged"):
        open_store(store.path)
    path.unlink()
    with pytest.raises(StoreError, match=r"coupling_mass of .* is missing"):
        open_store(store.path)


def test_what_is_no_store_is_refused_by_name(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StoreError, match="does not exist; make a store with convert or generate"):
        open_store(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file is no store"):
        open_store(tmp_path / "file")
    zarr.create_group(tmp_path / "group")
    with pytest.raises(StoreError, match="not one written by this program"):
        open_store(tmp_path / "group")
    zarr.create_array(tmp_path / "array", shape=(2,), dtype="u1")
    with pytest.raises(StoreError, match="is a Zarr array"):
        open_store(tmp_path / "array")
    for place in ("", ".", "/"):
        with pytest.raises(StoreError, match=r"is no store: it has no zarr\.json; give the directory"):
            open_store(place)
    store.path.rename(tmp_path / "t.partial")
    with pytest.raises(StoreError, match=r"t does not exist"):  # the directory may be the user's
        open_store(tmp_path / "t")
    (tmp_path / "t.partial" / MARK_FILE).touch()
    with pytest.raises(StoreError, match=r"t.partial is half-written"):
        open_store(tmp_path / "t.partial")
    with pytest.raises(StoreError, match=r"t is half-written"):
        open_store(tmp_path / "t")


def change_json(path: Path, change) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_another_format_version_is_refused_with_both_numbers(store: Store) -> None:
    change_json(store.path / "zarr.json", lambda d: d["attributes"].update(format_version=7))
    with pytest.raises(StoreError, match="has format version 7, this program reads 4"):
        open_store(store.path)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("sense", "maximum", "max or min"),
        ("sense", None, "max or min"),
        ("dtype", "x", "float32 or float64"),
        ("n_states", 0, "a whole number of at least 1"),
        ("n_rows", 1.5, "a whole number of at least 0"),
        ("n_transitions", True, "a whole number of at least 0"),
        ("n_partitions", None, "a whole number of at least 1"),
        ("n_couplings", [], "a whole number of at least 1"),
        ("actions_per_state", "x", "a whole number of at least 0"),
        ("successors_per_action", -1, "a whole number of at least 0"),
        ("fields", None, "an object with an object for each of this format's fields"),
        ("fields", ["halo", "halo"], "an object with an object for each of this format's fields"),
        ("fields", {"knots": {}}, "an object with an object for each of this format's fields"),
        ("fields", {"halo": 3}, "an object with an object for each of this format's fields"),
        ("state_order", {}, "of kind identity, array, or grid"),
        ("state_order", {"kind": "other"}, "of kind identity, array, or grid"),
        ("state_order", {"kind": ["grid"]}, "of kind identity, array, or grid"),
        ("state_order", {"kind": "grid"}, "with the shape of the grid and rising edges"),
        ("state_order", {"kind": "grid", "shape": [6, 10], "edges": [[0, 6]]}, "rising edges"),
        ("state_order", {"kind": "grid", "shape": [60], "edges": [[0, 15, 15, 60]]}, "rising edges"),
        ("state_order", {"kind": "grid", "shape": [60], "edges": [[0, "15", 60]]}, "rising edges"),
        ("partitioning", "ranges", "an object"),
        ("provenance", [1], "an object"),
        ("geometry", 3, "an object"),
        ("uuid", 7, "a word"),
        ("fingerprint", "", "a SHA-256 in hexadecimal"),
    ],
)
def test_an_attribute_that_the_format_does_not_allow_is_refused(
    store: Store, name: str, value: object, rule: str
) -> None:
    def change(document: dict) -> None:
        attributes = document["attributes"]
        for group in (attributes, attributes["table"], attributes["about"]):
            if name in group:
                group[name] = value

    change_json(store.path / "zarr.json", change)
    with pytest.raises(StoreError) as caught:
        open_store(store.path)
    message = str(caught.value)
    assert re.match(rf"{re.escape(str(store.path))} is damaged \((its attributes|table|about): {name} is ", message)
    assert rule in message
    assert message.endswith("); make the store again")


def test_attributes_that_are_missing_or_none_at_all_are_refused(store: Store) -> None:
    original = (store.path / "zarr.json").read_text()
    change_json(store.path / "zarr.json", lambda d: [d["attributes"]["table"].pop(n) for n in ("n_rows", "sense")])
    with pytest.raises(StoreError, match=r"\(table: missing: n_rows, sense\); make the store again"):
        open_store(store.path)
    (store.path / "zarr.json").write_text(original)
    change_json(store.path / "zarr.json", lambda d: d["attributes"].update(encodingr={}))
    with pytest.raises(StoreError, match="its attributes: unknown: encodingr"):
        open_store(store.path)
    change_json(store.path / "zarr.json", lambda d: d.update(attributes=1))
    with pytest.raises(StoreError, match="not one written by this program"):
        open_store(store.path)


@pytest.mark.parametrize("text", ["", "[1", "[]", "null", "[" * 100_000, '{"attributes": NaN}'])
def test_a_group_file_that_is_no_metadata_is_refused(store: Store, text: str) -> None:
    (store.path / "zarr.json").write_text(text)
    with pytest.raises(StoreError, match=r"zarr\.json (cannot be read|is no Zarr metadata)|is a Zarr array"):
        open_store(store.path)


def test_a_number_that_is_not_finite_is_not_what_was_sealed(store: Store) -> None:
    change_json(store.path / "zarr.json", lambda d: d["attributes"]["about"]["provenance"].update(cost=float("nan")))
    with pytest.raises(StoreError, match="are not those that were written"):
        open_store(store.path)


def test_metadata_of_arrays_are_for_others_and_only_checked(store: Store) -> None:
    tables = [store.read(p)[0].successors.tobytes() for p in range(4)]
    arrays = {name: store.path / name / str(length) for name, length in arrays_of(store)}
    change_json(arrays["halo"] / "zarr.json", lambda d: d.update(data_type="float32"))
    (arrays["rewards"] / "zarr.json").write_text("[1")
    (arrays["boundary"] / "zarr.json").unlink()
    change_json(store.path / "chunk_lengths" / "zarr.json", lambda d: d.update(shape=[4]))
    opened = open_store(store.path)
    assert [opened.read(p)[0].successors.tobytes() for p in range(4)] == tables
    found = {f.field: f.message for f in check_store(opened).findings}
    assert set(found) == {"halo", "rewards", "boundary", "chunk_lengths"}
    assert "float32" in found["halo"]
    assert "missing" in found["boundary"]


def test_a_store_whose_directory_was_replaced_is_read_no_further(tmp_path: Path, store: Store) -> None:
    other = convert(ModelSource(random_model(6, 60)), tmp_path / "other", ConvertOptions(partitions=4))
    first = store.read(0)[0]
    store.path.rename(tmp_path / "old")
    other.path.rename(store.path)
    np.testing.assert_array_equal(store.read(0)[0].rewards, first.rewards)  # it is open, wherever it lies
    with pytest.raises(StoreError, match="was replaced since it was opened; open it again"), store.hold():
        pass
    chunk_path(tmp_path / "old", "halo", 0).unlink()
    with pytest.raises(StoreError, match=r"halo of partition 0 cannot be read any more.* was replaced or removed"):
        store.read(0)


def test_a_special_file_in_place_of_a_stores_file_does_not_block(store: Store) -> None:
    for name in (store.chunk_name("halo", 1), "partition_ptr/c/0", "zarr.json"):
        (store.path / name).unlink()
        os.mkfifo(store.path / name)
        with pytest.raises(StoreError, match="is not a regular file"):
            open_store(store.path).read(1)


def test_values_go_back_to_the_order_of_the_source(tmp_path: Path, store: Store) -> None:
    values = np.arange(60.0)
    assert store.to_source(values) is values
    grid = convert(ModelSource(random_model(5, 60)), tmp_path / "g", ConvertOptions(shape=(6, 10), partitions=4))
    every = np.concatenate([grid.original_states(p) for p in range(4)])
    assert every.tolist() != sorted(every)
    assert grid.to_source(every * 2.0).tolist() == [2.0 * i for i in range(60)]
    with pytest.raises(ValueError, match="59 values for 60 states"):
        grid.to_source(values[:-1])


@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    dtype=st.sampled_from([np.float64, np.int32, np.uint8]),
    many=st.booleans(),
    data=st.data(),
)
def test_blocks_copied_on_threads_lie_where_one_after_the_other_does(
    shape: list[int], dtype: type, many: bool, data: st.DataObject
) -> None:
    cuts = [data.draw(st.sets(st.integers(1, n - 1))) if n > 1 else set() for n in shape]
    grid = GridOrder(shape, [sorted({0, n} | cut) for n, cut in zip(shape, cuts, strict=True)])
    new_of_old = grid.to_store(np.arange(int(np.prod(shape))))
    values = np.arange(new_of_old.size)[::-1].astype(dtype)
    before = values.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ooc_mdp.model.state_order._MANY_BYTES", 0 if many else 1 << 40)
        found = grid.to_source(values)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values[new_of_old])
    np.testing.assert_array_equal(values, before)
    size, in_pieces = data.draw(st.integers(1, values.size)), np.zeros_like(values)
    for first in data.draw(st.permutations(range(0, values.size, size))):
        grid.place(in_pieces, first, values[first : first + size])
    np.testing.assert_array_equal(in_pieces, found)


def test_inspect_counts_what_the_tables_hold(store: Store) -> None:
    report = inspect_store(store)
    tables = [store.read(p)[0] for p in range(4)]
    leaving = sum(int((t.successors >= t.n_states).sum()) for t in tables)
    assert report["n_states"] == 60
    assert report["n_transitions"] == store.n_transitions
    assert report["cut"] == {"transitions": leaving, "share": leaving / store.n_transitions}
    assert report["halo"]["states"] == sum(t.halo.size for t in tables)
    assert report["n_partitions"] == 4
    assert report["decoded_bytes"] == sum(t.nbytes for t in tables)
    assert report["fields"]["probabilities"]["decoded_bytes"] == 8 * store.n_transitions
    assert report["coupling"]["density"] == store.facts.coupling.partitions.size / 16
    assert report["provenance"]["source"] == "model.test"
    assert inspect_store(store, transitions=False)["cut"] == {"transitions": None, "share": None}
    json.dumps(report)


def test_a_grid_that_is_not_cut_into_the_partitions(tmp_path: Path) -> None:
    options = ConvertOptions(shape=(6, 10), partition_shape=(3, 4))
    edges = [[0, 2, 6], [0, 10]]
    store = convert(ModelSource(random_model(5, 60)), tmp_path / "s", options)
    reseal(store.path, lambda attributes: attributes["table"]["state_order"].update(edges=edges, block_shape=[4, 10]))
    with pytest.raises(StoreError, match="state_order whose blocks of the grid are not the partitions"):
        open_store(store.path)


@pytest.mark.parametrize("shape", [[10**12], [10**6, 10**6], [10**12, 60]])
def test_a_grid_larger_than_the_table_is_refused_before_anything_of_its_size_is_allocated(
    shape: list[int], tmp_path: Path
) -> None:
    store = convert(ModelSource(random_model(5, 60)), tmp_path / "s", ConvertOptions(partitions=1))
    grid = {"kind": "grid", "shape": shape, "block_shape": shape, "edges": [[0, n] for n in shape]}
    reseal(store.path, lambda attributes: attributes["table"].update(state_order=grid))
    with pytest.raises(
        StoreError, match=r"a grid of \d+ points in 1 blocks is not the table's, of 60 states in 1 part"
    ):
        open_store(store.path)


def test_a_grid_of_any_size_is_described_without_memory_of_its_size() -> None:
    order = {"shape": [10**12], "edges": [[0, 10**11, 10**12]]}
    grid = GridOrder.from_order(order, np.array([0, 10**11, 10**12]))
    assert grid.block_shapes().size == 2


def test_what_was_changed_and_not_sealed_is_refused(store: Store) -> None:
    other = {"max": "min", "min": "max"}[store.sense]
    original = (store.path / "zarr.json").read_text()
    change_json(store.path / "zarr.json", lambda d: d["attributes"]["table"].update(sense=other))
    with pytest.raises(StoreError, match="are not those that were written"):
        open_store(store.path)
    (store.path / "zarr.json").write_text(original)
    changed = read_small(store.path, "reward_range") * 2
    write_small(store.path, "reward_range", changed)
    with pytest.raises(StoreError, match=r"the fingerprint of .* does not match"):
        open_store(store.path)


def test_exchanged_chunks_are_refused_by_every_read(store: Store) -> None:
    one, other = (chunk_path(store.path, "rewards", p) for p in (1, 2))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    opened = open_store(store.path)
    for p in (1, 2):
        with pytest.raises(StoreError, match=rf"rewards of partition {p} is damaged"):
            opened.read(p)
        with pytest.raises(StoreError, match=rf"rewards of partition {p} is damaged"):
            opened.read_frames(p, np.empty(opened.facts.frame_buffer_bytes, np.uint8))
    assert [(f.field, f.partition) for f in check_store(opened).findings] == [("rewards", 1), ("rewards", 2)]


def test_a_forged_chunk_of_the_same_checksum_is_found_by_sha256(store: Store) -> None:
    meta = store.fields["rewards"]
    values = store.read_field("rewards", 1)[0][::-1].copy()
    write_frame(chunk_path(store.path, "rewards", 1), encode_frame(meta.field, values))
    accept(store, sha256=False)  # length and crc32c, which a forger can meet
    store.read(1)
    with pytest.raises(StoreError, match="it was forged"):
        store.checking_sha256().read(1)
    assert [(f.field, f.partition) for f in check_store(store).findings] == [("rewards", 1)]


def test_importing_the_store_brings_neither_dask_nor_numba_nor_zarr() -> None:
    code = "import sys, ooc_mdp.store; print([m for m in ('dask', 'numba', 'zarr') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_example_in_the_documentation_reads_a_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DOCS / "reference" / "store-format.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    store.path.rename(store.path.parent / "model.store")
    monkeypatch.chdir(store.path.parent)
    names: dict[str, np.ndarray] = {}
    exec(example, names)
    assert names["row_sums"] == pytest.approx(1)
    assert names["states"].max() < 60
