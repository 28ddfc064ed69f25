from __future__ import annotations

import math
import os
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import place_in_memory
from store_models import Action, Model, ModelProblem, ModelSource, State, model_in, random_model

import ooc_mdp
from ooc_mdp.errors import InputError, OptionsError, StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.model.mdp import Block
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import check_store, open_store
from ooc_mdp.store.encodings import encode

PARTITIONERS = ["ranges", "grid", "metis"]


def needs(partitioner: str) -> None:
    if partitioner == "metis":
        pytest.importorskip("pymetis")


@st.composite
def models(draw: st.DrawFn) -> Model:
    return random_model(
        seed=draw(st.integers(0, 2**32)),
        n=draw(st.integers(1, 40)),
        max_actions=draw(st.integers(1, 4)),
        max_successors=draw(st.integers(1, 5)),
        terminal=draw(st.sampled_from([0.0, 0.2, 0.9, 1.0])),
        uniform=draw(st.booleans()),
        durations=draw(st.booleans()),
        labels=draw(st.booleans()),
        initial_values=draw(st.booleans()),
    )


def grid_shape(n: int) -> tuple[int, ...]:
    divisor = next(d for d in range(int(n**0.5), 0, -1) if n % d == 0)
    return divisor, n // divisor


@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("way", ["convert", "generate"])
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(model=models(), size=st.integers(40, 2000), dtype=st.sampled_from(["float32", "float64"]), data=st.data())
def test_a_table_read_back_equals_the_rows_written(
    model: Model, size: int, dtype: str, data: st.DataObject, partitioner: str, way: str
) -> None:
    needs(partitioner)
    n = len(model.states)
    options = ConvertOptions(
        partitioner=partitioner,
        partition_size=size,
        shape=grid_shape(n) if partitioner == "grid" else None,
        dtype=dtype,
        threads=2,
    )
    with tempfile.TemporaryDirectory(dir=place_in_memory()) as directory:
        path = Path(directory, "model.store")
        if way == "convert":
            source = ModelSource(model, block=data.draw(st.integers(1, n)))
            store = convert(source, path, options)
            assert source.checks == 1
        else:
            store = generate(ModelProblem(model), path, options)
        assert os.listdir(directory) == ["model.store"]
        assert model_in(store).states == model.states
        every = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
        assert sorted(every.tolist()) == list(range(n))
        assert store.to_source(every).tolist() == list(range(n))
        assert check_store(store).findings == ()
        group = zarr.open_group(path, mode="r")
        for p in range(store.n_partitions):
            table, n_bytes = store.read(p)
            assert (table.nbytes, n_bytes) == (store.facts.partition_bytes[p], store.chunk_bytes[p])
            for name, meta in store.fields.items():
                values, _ = store.read_field(name, p)
                padded = group[store.chunk_name(name, p).rpartition("/")[0]][p]
                assert padded.dtype == meta.stored
                if meta.encoding is not None:
                    values = encode(meta.encoding, values, store._row_layout(p, store.sizes(p), {}))
                np.testing.assert_array_equal(padded[: values.size], values)
                assert not padded[values.size :].any()


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_converting_and_generating_the_same_model_give_the_same_table(tmp_path: Path, partitioner: str) -> None:
    needs(partitioner)
    model = random_model(3, 60)
    shape = (6, 10) if partitioner == "grid" else None
    options = ConvertOptions(partitioner=partitioner, partitions=5, shape=shape, sense="max")
    first = convert(ModelSource(model), tmp_path / "a", options)
    second = generate(ModelProblem(model), tmp_path / "b", options)
    if partitioner == "grid":  # the others balance by each state's bytes in one, by the mean in the other
        for p in range(5):
            for x, y in zip(_arrays(first, p), _arrays(second, p), strict=True):
                np.testing.assert_array_equal(x, y)
    assert model_in(first).states == model_in(second).states


def _arrays(store, p):
    table, _ = store.read(p)
    return [
        table.action_ptr,
        table.successor_ptr,
        table.successors,
        table.probabilities,
        table.rewards,
        table.halo,
    ]


def test_the_fingerprint_tells_tables_apart_and_the_uuid_writings(tmp_path: Path) -> None:
    options = ConvertOptions(partitions=3)
    a = convert(ModelSource(random_model(1, 30)), tmp_path / "a", options)
    b = convert(ModelSource(random_model(1, 30)), tmp_path / "b", options)
    c = convert(ModelSource(random_model(2, 30)), tmp_path / "c", options)
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert len({a.uuid, b.uuid, c.uuid}) == 3


def test_a_uniform_table_drops_its_pointers(tmp_path: Path) -> None:
    model = random_model(0, 30, max_actions=2, max_successors=3, uniform=True)
    store = convert(ModelSource(model), tmp_path / "s", ConvertOptions(partitions=4))
    table, _ = store.read(2)
    assert (table.actions_per_state, table.successors_per_action) == (2, 3)
    assert table.action_ptr.size == table.successor_ptr.size == 0
    assert "action_ptr" not in store.fields
    assert store.action_counts(2).tolist() == [2] * table.n_states


def test_early_partitions_are_completed_by_what_later_ones_have(tmp_path: Path) -> None:
    plain = [State((Action(1.0, {i: 1.0}),)) for i in range(400)]
    wide = State((Action(2.0, dict.fromkeys(range(256), 1 / 256), label=0), Action(3.0, {0: 1.0}, label=1)))
    model = Model((*plain, wide, State((), 5.0)))
    store = generate(ModelProblem(model), tmp_path / "s", ConvertOptions(partitions=67, threads=1))
    assert model_in(store).states == model.states
    assert store.fields["successors"].dtype == np.uint16
    assert store.read(0)[0].action_ptr.tolist() == list(range(7))
    assert check_store(store).valid


def test_the_coupling_row_is_the_largest_mass_into_each_partition(tmp_path: Path) -> None:
    model = Model(
        (
            State((Action(0.0, {0: 0.25, 2: 0.75}), Action(0.0, {1: 0.5, 3: 0.5}))),
            State((Action(0.0, {3: 0.125, 4: 0.875}),)),
            State((Action(0.0, {2: 1.0}),)),
            State(()),
            State((), 9.0),
        )
    )
    store = convert(ModelSource(model), tmp_path / "s", ConvertOptions(shape=(5,), partitions=2))
    coupling = store.facts.coupling
    assert store.facts.partition_ptr.tolist() == [0, 2, 5]
    assert coupling.ptr.tolist() == [0, 2, 3]
    assert coupling.partitions.tolist() == [0, 1, 1]
    assert (coupling.mass >= [0.5, 1.0, 1.0]).all()
    assert coupling.mass == pytest.approx([0.5, 1.0, 1.0], rel=1e-11)
    assert store.facts.reward_range.tolist() == [[0, 0], [0, 9]]
    assert store.facts.max_successors.tolist() == [2, 1]


class FailingSource(ModelSource):
    def __init__(self, model: Model, failing: dict[int, float], block: int) -> None:
        super().__init__(model, block)
        self.failing = failing

    def read(self, first: int) -> Block:
        if first in self.failing:
            import time

            time.sleep(self.failing[first])
            raise InputError(self.path, "broken", first)
        return super().read(first)


def test_of_several_errors_the_first_in_the_file_is_raised(tmp_path: Path) -> None:
    source = FailingSource(random_model(0, 40), {8: 0.05, 12: 0.0, 16: 0.0, 20: 0.0}, block=4)
    with pytest.raises(InputError) as caught:
        convert(source, tmp_path / "s", ConvertOptions(threads=4))
    assert caught.value.line == 8
    assert source.checks == 0
    assert os.listdir(tmp_path) == []


def test_no_block_is_drawn_long_after_an_error(tmp_path: Path) -> None:
    source = FailingSource(random_model(0, 400), {0: 0.0}, block=1)
    drawn = []

    def blocks():
        for first in range(400):
            drawn.append(first)
            yield partial(source.read, first)

    source.blocks = blocks  # type: ignore[method-assign]
    with pytest.raises(InputError):
        convert(source, tmp_path / "s", ConvertOptions(threads=2))
    assert len(drawn) <= 16


def test_blocks_must_follow_each_other_and_hold_every_state(tmp_path: Path) -> None:
    source = ModelSource(random_model(0, 20), 5)
    source.blocks = lambda: iter([partial(source.read, 0), partial(source.read, 10)])  # type: ignore[method-assign]
    with pytest.raises(InputError, match="begins at state 10, not at 5"):
        convert(source, tmp_path / "s")
    source.blocks = lambda: iter([partial(source.read, 0)])  # type: ignore[method-assign]
    with pytest.raises(InputError, match="hold 5 states, the model has 20"):
        convert(source, tmp_path / "s")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (Action(0.0, {0: 0.5}), "state 1, action 1: probabilities sum to 0.5, not 1"),
        (Action(0.0, {0: 1.5, 1: -0.5}), "probability of successor 0 is 1.5, above 1"),
        (Action(0.0, {0: 0.0, 1: 0.0}), "probabilities sum to 0, not 1"),
        (Action(0.0, {}), "no successors"),
        (Action(0.0, {9: 1.0}), "successor 9 is not below the number of states, 2"),
        (Action(1e300, {0: 1.0}), re.escape("reward 1e+300 is not a finite float32; store float64")),
        (Action(float("nan"), {0: 1.0}), "reward is NaN"),
        (Action(0.0, {0: 1.0}, duration=0.0), "duration is 0.0; a duration is above 0"),
        (Action(0.0, {0: 1.0}, duration=-math.inf), "duration is -inf; a duration is above 0"),
        (Action(0.0, {0: 1.0}, duration=math.nan), "duration is nan; a duration is above 0"),
    ],
)
def test_rows_that_are_no_mdp_are_refused_by_name(tmp_path: Path, action: Action, message: str) -> None:
    good = Action(0.0, {0: 1.0})
    model = Model((State((good,)), State((good, action))), durations=True)
    with pytest.raises(InputError, match=message):
        convert(ModelSource(model), tmp_path / "s", ConvertOptions(dtype="float32"))
    assert os.listdir(tmp_path) == []


def test_a_model_without_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no states"):
        convert(ModelSource(Model(())), tmp_path / "s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 31}, "31 partitions for 30 states"),
        ({"partitioner": "grid"}, "needs the points along each axis; give them with --grid"),
        ({"partitioner": "grid", "shape": (4, 5)}, "has 20 states, the model has 30"),
        ({"partitioner": "ranges", "shape": (4, 5)}, "has 20 states, the model has 30"),
        ({"partitioner": "metis", "shape": (4, 5)}, "has 20 states, the model has 30"),
        ({"shape": (5, 6), "partitions": 7}, "cannot be cut into 7 blocks; 6 is the nearest"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        convert(ModelSource(random_model(0, 30)), tmp_path / "s", ConvertOptions(**options))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [
        {"partitions": 2, "partition_size": 5},
        {"partitions": 0},
        {"threads": 0},
        {"dtype": "float16"},
        {"sense": "up"},
        {"partitioner": "squares"},
        {"partitioner": "ranges", "partition_shape": (2, 2)},
        {"partitioner": "ranges", "partition_grid": (2, 2)},
        {"partition_shape": (2, 2), "partition_grid": (2, 2)},
        {"partition_grid": (2, 0)},
        {"shape": ()},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict) -> None:
    with pytest.raises(OptionsError):
        ConvertOptions(**options)


@pytest.mark.parametrize("dtype", [np.float32, np.dtype("float32"), "float32"])
def test_numbers_and_types_of_numpy_are_options_too(tmp_path: Path, dtype: Any) -> None:
    store = ooc_mdp.generate("GW-16x4", tmp_path / "s", partition_size=np.int64(1 << 14), dtype=dtype)  # type: ignore[arg-type]
    assert store.facts.attributes["dtype"] == "float32"
    again = ooc_mdp.generate("GW-16x4", tmp_path / "t", partition_size=1 << 14, dtype="float32")
    assert store.fingerprint == again.fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 4.0}, "partitions is 4.0, which is no whole number"),
        ({"threads": 1.5}, "threads is 1.5, which is no whole number"),
        ({"partition_size": 4e4}, "partition size is 40000.0, which is no whole number; write for example 67108864"),
        ({"partition_grid": 2}, "partition grid is 2 of type int; give a whole number for each axis"),
        ({"partition_grid": "2;2"}, "partition grid '2;2' is no list of numbers; write for example 100,200"),
        ({"partition_shape": (5.0, 5.0)}, "partition shape along an axis is 5.0, which is no whole number"),
        ({"dtype": "half"}, "dtype is 'float16'; give float32 or float64"),
        ({"dtype": object()}, "of type object; give 'float32' or"),
    ],
)
def test_what_is_no_option_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": 20}, device="cpu", **options)


@pytest.mark.parametrize("make", ["convert", "generate"])
def test_no_store_is_written_inside_another(tmp_path: Path, make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(0, 30)

    def write(path: Path) -> None:
        if make == "convert":
            convert(ModelSource(model), path)
        else:
            generate(ModelProblem(model), path)

    write(tmp_path / "outer")
    (tmp_path / "link").symlink_to(tmp_path / "outer" / "rewards")
    array = next((tmp_path / "outer" / "rewards").glob("*/zarr.json")).parent
    for place in (tmp_path / "outer" / "s", array / "s", tmp_path / "link" / "s"):
        with pytest.raises(StoreError, match=r"/s would lie inside .*outer.*, a Zarr group or store; choose a place o"):
            write(place)
    monkeypatch.chdir(tmp_path / "outer")
    with pytest.raises(StoreError, match=r"^s would lie inside"):
        write(Path("s"))
    assert check_store(open_store(tmp_path / "outer")).valid


def test_attributes_say_where_a_store_comes_from(tmp_path: Path) -> None:
    problem = ModelProblem(random_model(0, 30), shape=(5, 6))
    geometry = {"names": ["x", "v"], "periodic": [False, True]}
    steps: list[tuple[str, int, int | None]] = []
    store = generate(
        problem,
        tmp_path / "s",
        ConvertOptions(partition_shape=(2, 4)),
        geometry=geometry,
        progress=lambda *step: steps.append(step),
    )
    assert store.sense == "min"
    assert store.facts.attributes["geometry"] == {"shape": [5, 6], **geometry}
    assert store.facts.attributes["state_order"]["edges"] == [[0, 2, 4, 5], [0, 4, 6]]
    assert store.facts.attributes["provenance"]["source"] == "model"
    assert store.facts.attributes["provenance"]["options"] == {"states": 30}
    assert steps[-1] == ("finish", 6, 6)
    assert store.n_partitions == 6


@pytest.mark.parametrize("known", [True, False])
def test_progress_is_states_read_of_how_many_where_the_source_says_so(known: bool, tmp_path: Path) -> None:
    source = ModelSource(random_model(0, 20), block=8)
    source.n_states = 20 if known else None
    steps: list[tuple[str, int, int | None]] = []
    convert(source, tmp_path / "s", ConvertOptions(partitions=2), progress=lambda *step: steps.append(step))
    in_all = 20 if known else None
    assert steps[:4] == [("read", 8, in_all), ("read", 16, in_all), ("read", 20, in_all), ("read", 20, 20)]
    assert steps[4:] == [(what, done, 2) for what in ("partitions", "finish") for done in (1, 2)]


def test_a_grid_is_cut_into_as_many_blocks_along_each_axis_as_asked(tmp_path: Path) -> None:
    problem = make_problem("mountain-car", {"grid": "30,20"})
    store = generate(problem, tmp_path / "s", ConvertOptions(partition_grid=(4, 3), dtype="float32"))
    assert store.n_partitions == 12
    assert store.facts.attributes["state_order"]["edges"] == [[0, 7, 15, 22, 30], [0, 6, 13, 20]]
    assert store.facts.attributes["geometry"] == {**problem.geometry(), "shape": [30, 20]}
    assert [axis["name"] for axis in store.facts.attributes["geometry"]["axes"]] == [
        a.name for a in problem.problem.axes
    ]
    for blocks in [(4,), (31, 2)]:
        with pytest.raises(OptionsError, match=r"cannot be cut into .* blocks; give a number for each axis"):
            generate(problem, tmp_path / "t", ConvertOptions(partition_grid=blocks))


def test_an_existing_store_is_replaced_only_when_asked(tmp_path: Path) -> None:
    first = convert(ModelSource(random_model(0, 30)), tmp_path / "s")
    with pytest.raises(StoreError, match="exists"):
        convert(ModelSource(random_model(1, 20)), tmp_path / "s")
    second = convert(ModelSource(random_model(1, 20)), tmp_path / "s", ConvertOptions(overwrite=True))
    assert (first.n_states, second.n_states) == (30, 20)
    assert check_store(second).valid
    assert os.listdir(tmp_path) == ["s"]


def test_a_failed_replacement_leaves_the_old_store(tmp_path: Path) -> None:
    convert(ModelSource(random_model(0, 30)), tmp_path / "s")
    bad = Model((State((Action(0.0, {0: 0.5}),)),))
    with pytest.raises(InputError):
        convert(ModelSource(bad), tmp_path / "s", ConvertOptions(overwrite=True))
    assert os.listdir(tmp_path) == ["s"]
    assert zarr.open_group(tmp_path / "s", mode="r").attrs["table"]["n_states"] == 30
