"""Stores with wrong contents, sealed again as a faulty writer would: each is refused or named by `check`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from forge import accept, chunk_path, read_small, seal, write_frame, write_small
from store_models import Action, Model, ModelSource, State, model_in, random_model

from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.store import Store, check_store, inspect_store, open_store
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.encodings import encode


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
        values = encode(meta.encoding, values, store._row_layout(p, store.sizes(p), {}))
    frame = encode_frame(meta.field, values.astype(meta.stored, copy=False))
    write_frame(chunk_path(store.path, name, p), frame)
    accept(store)


def rewrite_small(store: Store, name: str, change) -> None:
    """Change a small array and seal the store with it."""
    values = read_small(store.path, name)
    change(values)
    write_small(store.path, name, values)
    seal(store.path)


def set_at(index, value):
    def change(values: np.ndarray) -> None:
        values[index] = value

    return change


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
def test_check_names_a_wrong_value(store: Store, name: str, change, finding: str | None) -> None:
    if finding is None:  # states of the partition itself in its halo
        change, finding = set_at(0, 15), "halo"
    rewrite(store, name, 1, change)
    assert any(str(f).startswith(finding) for f in check_store(store).findings)


@pytest.mark.parametrize(
    ("name", "change", "finding"),
    [
        ("row_sum_range", set_at((1, 0), 0.5), "row_sum_range of partition 1: says"),
        ("duration_range", set_at((1, 1), 99.0), "duration_range of partition 1: says"),
        ("coupling_mass", set_at(0, 0.0), "coupling_mass of partition 0: 0.0 into partition 0"),
        ("coupling_mass", lambda v: np.add(v, 1e-8, out=v), "coupling_mass of partition 3"),
        ("reward_range", set_at((1, 0), -99.0), "reward_range of partition 1: says"),
    ],
)
def test_check_names_a_wrong_small_array(store: Store, name: str, change, finding: str) -> None:
    rewrite_small(store, name, change)
    assert any(str(f).startswith(finding) for f in check_store(open_store(store.path)).findings)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("partition_ptr", set_at(1, 0), "partition_ptr that does not rise"),
        ("partition_ptr", set_at(4, 61), "partition_ptr that does not rise from 0 to 60 states"),
        ("partition_rows", set_at(1, -1), "says n_rows"),
        ("partition_rows", set_at(1, 1 << 40), "says n_rows"),
        ("partition_transitions", set_at(1, 1 << 62), "says n_transitions"),
        ("partition_halo", set_at(1, 60), "partition_halo outside"),
        ("partition_bytes", set_at(1, 1), "partition_bytes that is not what its partitions take"),
        ("chunk_bytes", set_at(1, 1), "chunk_bytes that is not the sum"),
        ("chunk_lengths", set_at((1, 1), -5), "has chunks of -5 to"),
        ("max_successors", set_at(1, 1 << 40), "max_successors that its partitions cannot have"),
        ("reward_range", set_at((1, 0), np.nan), "reward_range that is no range"),
        ("reward_range", set_at((1, 0), 1e9), "reward_range that is no range"),
        ("duration_range", set_at((1, 0), 0.0), "durations that are not positive"),
        ("coupling_mass", set_at(0, 2.0), "coupling_mass outside 0 to 1"),
        ("coupling_partitions", set_at(1, 0), "coupling_partitions that do not rise"),
        ("coupling_partitions", set_at(-1, 4), "couples partitions that do not exist: there are 4"),
        ("coupling_ptr", set_at(1, 0), "coupling_ptr that does not rise"),
        ("coupling_ptr", set_at(-1, 1 << 50), "coupling_ptr that does not rise"),
    ],
)
def test_small_arrays_that_loops_cannot_follow_are_refused_although_sealed(store, name, change, error) -> None:
    rewrite_small(store, name, change)
    with pytest.raises(StoreError, match=error):
        open_store(store.path)


def test_a_longest_row_that_is_not_the_tables_is_refused_when_the_rows_are_read(store: Store) -> None:
    rewrite_small(store, "max_successors", lambda v: np.add(v, 1, out=v))
    opened = open_store(store.path)
    with pytest.raises(
        StoreError,
        match=r"rows of partition 2 .* cannot be followed: rows have 1 to \d+ transitions, at most \d+ are due",
    ):
        opened.read(2)


def test_rows_that_end_the_process_bound_nothing(tmp_path: Path) -> None:
    ends = Action(2.0, {0: 0.5, 1: 0.0, 2: 0.5000001}, duration=np.inf)
    goes_on = Action(1.0, {0: 0.75, 1: 0.25, 2: 0.0}, label=1)
    model = Model((State((ends, goes_on)), State((ends,)), State((ends,))), durations=True)
    store = convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=3))
    assert store.facts.duration_range.tolist() == [[1.0, np.inf], [np.inf, np.inf], [np.inf, np.inf]]
    assert store.facts.row_sum_range.tolist() == [[1.0, 1.0]] * 3
    assert store.facts.coupling.partitions.tolist() == [0, 1, 2] * 3
    assert store.facts.coupling.mass == pytest.approx([0.75, 0.25, 0, 0, 0, 0, 0, 0, 0], rel=1e-11)
    assert store.facts.attributes["successors_per_action"] == 3
    assert model_in(store) == replace(model, durations=False)
    assert check_store(store).findings == ()
    json.dumps(inspect_store(store), allow_nan=False)
    rewrite_small(store, "duration_range", set_at((0, 1), 99.0))
    assert [f.field for f in check_store(open_store(store.path)).findings] == ["duration_range"]


def test_check_names_files_that_do_not_belong(store: Store) -> None:
    array = store.chunk_name("halo", 1).rpartition("/")[0]
    surplus = ("notes.txt", f"{array}/c.9.0", f"{array}/c.1.1", "halo/extra")
    for path in surplus:
        (store.path / path).touch()
    (store.path / "partition_ptr" / "zarr.json").unlink()
    messages = [str(f) for f in check_store(store).findings]
    assert len(messages) == 5
    for path in surplus:
        assert any("unexpected" in m and m.endswith(path) for m in messages)
    assert any("missing" in m and "partition_ptr" in m for m in messages)


def test_check_reports_its_progress(store: Store) -> None:
    steps: list[tuple[str, int, int | None]] = []
    assert check_store(store, lambda *step: steps.append(step)).valid
    assert steps[-1] == ("boundary", 4, 4)
    assert len(steps) == 8


@pytest.mark.parametrize(("name", "wrong"), [("successors", 255), ("halo", 60)])
def test_states_that_do_not_exist_are_refused_when_a_partition_is_read(store, name, wrong):
    def change(values):
        values[-1] = wrong

    rewrite(store, name, 1, change)
    with pytest.raises(StoreError, match=rf"field {name} of partition 1 names state {wrong}, and there are \d+"):
        store.read(1)
    store.read(0)
    assert not check_store(store).valid
