from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from store_models import Action, Model, ModelSource, State, model_in, random_model
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from ooc_mdp.conversion import ConvertOptions, convert
from ooc_mdp.errors import StoreError
from ooc_mdp.store import Store, inspect_store, open_store, validate_store
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.encodings import encode
from ooc_mdp.store.layout import FIELDS, SMALL_ARRAYS, chunk_path
from ooc_mdp.store.numbering import GridNumbering


@pytest.fixture
def store(tmp_path: Path) -> Store:
    model = random_model(5, 60, durations=True, labels=True, initial_values=True)
    return convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=4))


def rewrite(store: Store, name: str, p: int, change) -> None:
    """Change a field's values behind the store's back, checksum and all."""
    meta = store.fields[name]
    values = store.read_field(name, p)[0].copy()
    change(values)
    if meta.encoding is not None:
        values = encode(meta.encoding, values, store._row_layout(p, {}))
    frame, crc = encode_chunk(meta.field, values.astype(meta.stored, copy=False), meta.max_len)
    chunk_path(store.path, name, p, 0).write_bytes(frame + crc.to_bytes(4, "little"))


def rewrite_small(store: Store, name: str, change) -> None:
    shape = zarr.open_array(store.path / name, mode="r").shape
    path = chunk_path(store.path, name, *(0 for _ in shape))
    values = np.frombuffer(path.read_bytes()[:-4], SMALL_ARRAYS[name][0]).reshape(shape).copy()
    change(values)
    path.write_bytes(values.tobytes() + google_crc32c.value(values.tobytes()).to_bytes(4, "little"))


def set_at(index, value):
    def change(values: np.ndarray) -> None:
        values[index] = value

    return change


def test_small_arrays_are_what_zarr_reads(store: Store) -> None:
    group = zarr.open_group(store.path, mode="r")
    assert set(group.array_keys()) == {*store.fields, *SMALL_ARRAYS}
    for name in SMALL_ARRAYS:
        owner = store.coupling if name.startswith("coupling_") else store
        held = getattr(owner, name.removeprefix("coupling_"))
        np.testing.assert_array_equal(group[name][...], held)
    assert dict(group.attrs) == store.attributes


def test_metadata_are_byte_for_byte_what_zarr_writes(store: Store, tmp_path: Path) -> None:
    for name, meta in store.fields.items():
        codec = FIELDS[name].codec(meta.encoding)
        blosc = BloscCodec(
            typesize=meta.stored.itemsize, cname=codec.cname, clevel=codec.clevel, shuffle=codec.shuffle, blocksize=0
        )
        zarr.create_array(
            tmp_path / "zarr" / name,
            shape=(store.n_partitions, meta.max_len),
            chunks=(1, meta.max_len),
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
    for name in (*store.fields, *SMALL_ARRAYS):
        assert (store.path / name / "zarr.json").read_bytes() == (tmp_path / "zarr" / name / "zarr.json").read_bytes()


def test_every_chunk_has_its_file_even_where_it_is_all_padding(store: Store) -> None:
    for name in store.fields:
        assert sorted(p.parent.name for p in store.path.glob(f"{name}/c/*/0")) == ["0", "1", "2", "3"]


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
def test_a_flipped_bit_is_found_by_read_and_by_validate(store: Store, name: str, where: int) -> None:
    path = chunk_path(store.path, name, 2, 0)
    damaged = bytearray(path.read_bytes())
    damaged[where] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(StoreError, match=rf"field {name} of partition 2 is damaged in .*{name}.*convert again"):
        store.read(2)
    store.read(1)
    assert [(f.field, f.partition) for f in validate_store(store).findings] == [(name, 2)]


def test_a_truncated_chunk_is_damaged_and_a_lost_one_missing(store: Store) -> None:
    path = chunk_path(store.path, "halo", 1, 0)
    path.write_bytes(path.read_bytes()[:2])
    with pytest.raises(StoreError, match="halo of partition 1 is damaged"):
        store.read(1)
    path.unlink()
    with pytest.raises(StoreError, match=r"halo of partition 1 is missing.*convert again"):
        store.read(1)
    assert {(f.field, f.partition) for f in validate_store(store).findings} == {("halo", 1)}


def test_a_small_array_that_is_damaged_or_missing_stops_opening(store: Store) -> None:
    path = chunk_path(store.path, "coupling_mass", 0)
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
    with pytest.raises(StoreError, match="has format version 7, this program reads 1 and 2"):
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
        ("fields", None, "a list of names"),
        ("fields", ["halo", "halo"], "a list of names, none twice"),
        ("fields", [["halo"]], "a list of names"),
        ("encodings", {"successors": []}, "an object with a word for each field"),
        ("encodings", "successors", "an object with a word for each field"),
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
        ("fingerprint", "", "a word"),
    ],
)
def test_an_attribute_that_the_format_does_not_allow_is_refused(
    store: Store, name: str, value: object, rule: str
) -> None:
    change_json(store.path / "zarr.json", lambda d: d["attributes"].update({name: value}))
    with pytest.raises(StoreError) as caught:
        open_store(store.path)
    said = str(caught.value)
    assert said.startswith(f"{store.path} has the attribute {name} = ")
    assert rule in said
    assert said.endswith("; convert again")


def test_attributes_that_are_missing_or_none_at_all_are_refused(store: Store) -> None:
    change_json(store.path / "zarr.json", lambda d: [d["attributes"].pop(name) for name in ("sense", "uuid")])
    with pytest.raises(StoreError, match="lacks the attributes sense, uuid; convert again"):
        open_store(store.path)
    change_json(store.path / "zarr.json", lambda d: d.update(attributes=1))
    with pytest.raises(StoreError, match="not one written by this program"):
        open_store(store.path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shape", None),
        ("shape", [4]),
        ("shape", ["4", 60]),
        ("shape", [4, "60"]),
        ("shape", [4, -1]),
        ("chunk_grid", {"configuration": None}),
        ("codecs", [1]),
        ("codecs", [{"name": "bytes"}, {"name": "blosc", "configuration": 1}, {"name": "crc32c"}]),
    ],
)
def test_metadata_of_a_field_with_wrong_types_are_refused(store: Store, name: str, value: object) -> None:
    path = store.path / "rewards" / "zarr.json"
    change_json(path, lambda d: d.update({name: value}))
    with pytest.raises(StoreError, match="rewards"):
        open_store(store.path)


def test_metadata_that_format_1_does_not_allow_is_refused(store: Store) -> None:
    change_json(store.path / "halo" / "zarr.json", lambda d: d.update(data_type="float32"))
    with pytest.raises(StoreError, match=r"field halo of .* is float32"):
        open_store(store.path)
    (store.path / "halo" / "zarr.json").write_text("[1")
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(store.path)
    (store.path / "halo" / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"halo/zarr.json is missing"):
        open_store(store.path)


def test_values_go_back_to_the_order_of_the_source(tmp_path: Path, store: Store) -> None:
    values = np.arange(60.0)
    assert store.to_original(values) is values
    grid = convert(ModelSource(random_model(5, 60)), tmp_path / "g", ConvertOptions(shape=(6, 10), partitions=4))
    every = np.concatenate([grid.original_states(p) for p in range(4)])
    assert every.tolist() != sorted(every)
    assert grid.to_original(every * 2.0).tolist() == [2.0 * i for i in range(60)]
    with pytest.raises(ValueError, match="59 values for 60 states"):
        grid.to_original(values[:-1])


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
    grid = GridNumbering(shape, [sorted({0, n} | cut) for n, cut in zip(shape, cuts, strict=True)])
    new_of_old = grid.to_new(np.arange(int(np.prod(shape))))
    values = np.arange(new_of_old.size)[::-1].astype(dtype)
    before = values.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ooc_mdp.store.numbering._MANY_BYTES", 0 if many else 1 << 40)
        found = grid.to_original(values)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values[new_of_old])
    np.testing.assert_array_equal(values, before)


def test_inspect_counts_what_the_tables_hold(store: Store) -> None:
    report = inspect_store(store)
    tables = [store.read(p)[0] for p in range(4)]
    leaving = sum(int((t.successors >= t.n_states).sum()) for t in tables)
    assert report["states"] == 60
    assert report["transitions"] == store.n_transitions
    assert report["cut"] == {"transitions": leaving, "share": leaving / store.n_transitions}
    assert report["halo"]["states"] == sum(t.halo.size for t in tables)
    assert report["partitions"]["count"] == 4
    assert report["decoded_bytes"] == sum(t.nbytes for t in tables)
    assert report["fields"]["probabilities"]["decoded_bytes"] == 8 * store.n_transitions
    assert report["coupling"]["density"] == store.coupling.partitions.size / 16
    assert report["provenance"]["source"] == "model.test"
    assert inspect_store(store, transitions=False)["cut"] == {"transitions": None, "share": None}
    json.dumps(report)


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("action_ptr", set_at(1, 4000), "action_ptr of partition 1: does not rise"),
        ("successor_ptr", set_at(1, 0), "successor_ptr of partition 1: does not rise"),
        ("successors", set_at(0, 250), "successors of partition 1: local successor 250 is not below"),
        ("probabilities", set_at(0, 1.5), "probabilities of partition 1: not all between 0 and 1"),
        ("probabilities", set_at(0, 1e-9), "probabilities of partition 1: local row 0 sums to"),
        ("rewards", set_at(0, 1e6), "reward_range of partition 1: says"),
        ("rewards", set_at(0, np.nan), "rewards of partition 1: not all finite"),
        ("durations", set_at(0, -1.0), "durations of partition 1: not all positive"),
        ("durations", set_at(0, np.nan), "durations of partition 1: not all positive"),
        ("halo", set_at(0, 59), "halo of partition 1: not ascending"),
        ("halo", set_at(slice(0, None), np.arange(15, 15 + 60)), None),
        ("boundary", lambda v: np.logical_not(v, out=v), "boundary of partition 1: wrong for 15 states"),
        ("initial_values", set_at(0, np.inf), "initial_values of partition 1: not all finite"),
    ],
)
def test_validate_names_a_wrong_value(store: Store, name: str, change, finding: str | None) -> None:
    if finding is None:  # states of the partition itself in its halo
        change, finding = set_at(0, 15), "halo"
    rewrite(store, name, 1, change)
    assert any(str(f).startswith(finding) for f in validate_store(store).findings)


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("partition_ptr", set_at(1, 0), "partition_ptr: does not rise"),
        ("row_sum_range", set_at((1, 0), 0.5), "row_sum_range of partition 1: says"),
        ("max_successors", set_at(1, 77), "max_successors of partition 1: says 77"),
        ("partition_bytes", set_at(1, 1), "partition_bytes of partition 1: says 1"),
        ("chunk_bytes", set_at(1, 1), "chunk_bytes of partition 1: says 1"),
        ("duration_range", set_at((1, 1), 99.0), "duration_range of partition 1: says"),
        ("coupling_mass", set_at(0, 0.0), "coupling_mass of partition 0: 0.0 into partition 0"),
        ("coupling_mass", lambda v: np.add(v, 1e-8, out=v), "coupling_mass of partition 3"),
        ("coupling_partitions", set_at(1, 0), "coupling_partitions of partition 0"),
        ("coupling_ptr", set_at(1, 0), "coupling_ptr: does not rise"),
    ],
)
def test_validate_names_a_wrong_small_array(store: Store, name: str, change, finding: str) -> None:
    rewrite_small(store, name, change)
    assert any(str(f).startswith(finding) for f in validate_store(open_store(store.path)).findings)


def test_rows_that_end_the_process_bound_nothing(tmp_path: Path) -> None:
    ends = Action(2.0, {0: 0.5, 1: 0.0, 2: 0.5000001}, duration=np.inf)
    goes_on = Action(1.0, {0: 0.75, 1: 0.25, 2: 0.0}, label=1)
    model = Model((State((ends, goes_on)), State((ends,)), State((ends,))), durations=True)
    store = convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=3))
    assert store.duration_range.tolist() == [[1.0, np.inf], [np.inf, np.inf], [np.inf, np.inf]]
    assert store.row_sum_range.tolist() == [[1.0, 1.0]] * 3
    assert store.coupling.partitions.tolist() == [0, 1, 2] * 3
    assert store.coupling.mass == pytest.approx([0.75, 0.25, 0, 0, 0, 0, 0, 0, 0], rel=1e-11)
    assert store.attributes["successors_per_action"] == 3
    assert model_in(store) == replace(model, durations=False)
    assert validate_store(store).findings == ()
    json.dumps(inspect_store(store), allow_nan=False)
    rewrite_small(store, "duration_range", set_at((1, 1), 99.0))
    assert [f.field for f in validate_store(open_store(store.path)).findings] == ["duration_range"]


def test_validate_names_a_grid_that_is_not_cut_into_the_partitions(tmp_path: Path) -> None:
    options = ConvertOptions(shape=(6, 10), block_shape=(3, 4))
    edges = [[0, 2, 6], [0, 10]]
    store = convert(ModelSource(random_model(5, 60)), tmp_path / "s", options)
    change_json(store.path / "zarr.json", lambda d: d["attributes"]["state_order"].update(edges=edges))
    findings = validate_store(open_store(store.path)).findings
    assert [f.field for f in findings] == ["state_order"]


def test_validate_recomputes_the_fingerprint(store: Store) -> None:
    other = {"max": "min", "min": "max"}[store.sense]
    change_json(store.path / "zarr.json", lambda d: d["attributes"].update(sense=other))
    (finding,) = validate_store(open_store(store.path)).findings
    assert str(finding).startswith(
        f"fingerprint: says {store.fingerprint}, but sense, dtype, partitions and chunks give "
    )
    change_json(store.path / "zarr.json", lambda d: d["attributes"].update(sense=store.sense))
    assert validate_store(open_store(store.path)).valid
    rewrite(store, "rewards", 1, lambda rewards: None)
    assert validate_store(open_store(store.path)).valid
    rewrite(store, "rewards", 1, lambda rewards: np.copyto(rewards, rewards[::-1].copy()))
    assert [f.field for f in validate_store(open_store(store.path)).findings] == ["fingerprint"]


def test_validate_names_files_that_do_not_belong(store: Store) -> None:
    for path in ("notes.txt", "halo/c/9", "halo/c/1/1", "halo/extra"):
        (store.path / path).touch()
    (store.path / "partition_ptr" / "zarr.json").unlink()
    messages = [str(f) for f in validate_store(store).findings]
    assert len(messages) == 5
    for path in ("notes.txt", "halo/c/9", "halo/c/1/1", "halo/extra"):
        assert any("unexpected" in m and m.endswith(path) for m in messages)
    assert any("missing" in m and "partition_ptr" in m for m in messages)


def test_validate_reports_its_progress(store: Store) -> None:
    steps: list[tuple[str, int, int | None]] = []
    assert validate_store(store, lambda *step: steps.append(step)).valid
    assert steps[-1] == ("boundary", 4, 4)
    assert len(steps) == 8


def test_importing_the_store_brings_neither_dask_nor_numba_nor_zarr() -> None:
    code = "import sys, ooc_mdp.store; print([m for m in ('dask', 'numba', 'zarr') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_example_in_the_documentation_reads_a_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(__file__).parent.parent.joinpath("docs", "store-format.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    store.path.rename(store.path.parent / "model.store")
    monkeypatch.chdir(store.path.parent)
    names: dict[str, np.ndarray] = {}
    exec(example, names)
    assert names["row_sums"] == pytest.approx(1)
    assert names["states"].max() < 60


@pytest.mark.parametrize(("name", "wrong"), [("successors", 255), ("halo", 60)])
def test_states_that_do_not_exist_are_refused_when_a_partition_is_read(store, name, wrong):
    def change(values):
        values[-1] = wrong

    rewrite(store, name, 1, change)
    with pytest.raises(StoreError, match=rf"field {name} of partition 1 names state {wrong}, and there are \d+"):
        store.read(1)
    store.read(0)
    assert not validate_store(store).valid
