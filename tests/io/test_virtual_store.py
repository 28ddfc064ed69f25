"""A virtual store is the table of its problem without the table: opened strictly, it gives what a full store gives."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from command_line import ooc, refused
from damage import damaged, exchanged, files_of, replaced
from equal_tables import assert_equal_sources
from store_models import Action, Model, ModelProblem, State, random_model
from worker_clusters import Clusters

import ooc_mdp
from ooc_mdp.backends.cuda.control.rows import DeviceProblem
from ooc_mdp.errors import InputError, OptionsError, StoreError
from ooc_mdp.io import virtual_store
from ooc_mdp.io.conversion import ConvertOptions
from ooc_mdp.io.first_pass import TableDescription
from ooc_mdp.io.recomputed_table import RecomputedTable
from ooc_mdp.io.virtual_store import generate_virtual, read_virtual_store
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.registry import PROBLEMS, make_problem
from ooc_mdp.store.output_lock import locked_output
from ooc_mdp.store.seal import digest_of

CAR = {"grid": "24,20"}


@pytest.fixture(scope="module")
def car(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The virtual store of a mountain car, which no test changes."""
    path = tmp_path_factory.mktemp("virtual") / "car"
    ooc_mdp.generate("mountain-car", path, CAR, partitions=6, device="cpu", virtual=True)
    return path


def as_recorded(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes without the time at which they were made."""
    origin = {name: value for name, value in attributes["provenance"].items() if name != "time"}
    return {**attributes, "provenance": origin}


@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        ("mountain-car", CAR, {"dtype": "float64", "partition_grid": [3, 2]}),
        ("double-pendulum", {"grid": "5,6,7,4"}, {"dtype": "float32", "partitions": 6}),
        ("GW-9x11x4", {"seed": 3}, {"partitioner": "ranges", "partitions": 5}),
        ("random", {"states": 60, "seed": 2}, {"partitions": 4, "sense": "min"}),
    ],
)
def test_its_table_is_that_of_a_store_and_of_the_problem_in_memory(name, parameters, options, tmp_path):
    store = ooc_mdp.generate(name, tmp_path / "s", parameters, device="cpu", **options)
    made = ooc_mdp.generate(name, tmp_path / "v", parameters, device="cpu", virtual=True, **options)
    opened = ooc_mdp.open_store(tmp_path / "v")
    in_memory = ooc_mdp.open_problem(name, parameters, device="cpu", **options)
    assert isinstance(opened, RecomputedTable)
    assert opened.fingerprint == made.fingerprint == in_memory.fingerprint
    assert as_recorded(opened.facts.attributes) == as_recorded(in_memory.facts.attributes)
    assert opened.facts.dtypes == in_memory.facts.dtypes
    assert opened.name == str(tmp_path / "v")
    assert_equal_sources(store, opened)
    assert_equal_sources(in_memory, opened)


def test_permuted_partitions_and_optional_fields_are_kept(tmp_path, monkeypatch):
    """As METIS divides a graph: any assignment of states; it is not installed everywhere."""
    from ooc_mdp.io import first_pass
    from ooc_mdp.model.state_order import PermutedOrder

    problem = ModelProblem(random_model(3, 40, initial_values=True))
    order = PermutedOrder(np.random.default_rng(1).integers(0, 3, 40))
    monkeypatch.setattr(first_pass, "partition_problem", lambda *_: (order, {"method": "metis"}))
    monkeypatch.setattr(virtual_store, "built_in_problem", lambda *_: problem)
    made = generate_virtual(problem, tmp_path / "v", ConvertOptions(threads=1))
    opened = ooc_mdp.open_store(tmp_path / "v")
    assert opened.facts.attributes["state_order"] == {"kind": "array"}
    assert {"initial_values"} <= set(opened.facts.dtypes)
    assert_equal_sources(made, opened)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_made_again_from_what_is_recorded(name, tmp_path):
    sizes: dict[str, dict[str, object]] = {
        "gridworld": {"height": 8, "width": 9},
        "quintanilla": {"height": 8, "width": 9},
        "random": {"states": 50},
        "integer-mountain-car": {"scale": 100},
    }
    few = sizes.get(name, {})
    if PROBLEMS[name].grid:
        axes = {"mountain-car": 2, "single-pendulum": 2, "double-pendulum": 4, "triple-pendulum": 6}[name]
        few = {"grid": ",".join(["4"] * axes), "max_step": 0.05}
    made = ooc_mdp.generate(name, tmp_path / "v", few, partitions=2, device="cpu", virtual=True)
    assert ooc_mdp.open_store(tmp_path / "v").fingerprint == made.fingerprint


def test_opening_computes_the_rows_of_the_sample_alone(car, monkeypatch):
    asked: list[int] = []
    rows = DiscretisedProblem.rows

    def counted(self: DiscretisedProblem, states: IntArray) -> Rows:
        asked.append(states.size)
        return rows(self, states)

    monkeypatch.setattr(DiscretisedProblem, "rows", counted)
    monkeypatch.setattr("ooc_mdp.io.first_pass._SAMPLE", 100)
    with pytest.raises(StoreError, match="gives another table now"):  # than from a sample of all 480
        ooc_mdp.open_store(car)
    assert asked == [100]
    monkeypatch.undo()
    monkeypatch.setattr(DiscretisedProblem, "rows", counted)
    ooc_mdp.open_store(car)
    assert asked == [100, 480]
    read_virtual_store(car)
    assert ooc("inspect", car).status == 0
    assert asked == [100, 480]


def test_it_is_solved_verified_and_simulated_as_a_store_is(car, tmp_path):
    solved = ooc("solve", car, "--discount", 0.9, "--device", "cpu", "--output", tmp_path / "r", "--json")
    assert solved.status == 0, solved.err
    assert solved.figures["source"] == "recomputed"
    assert solved.figures["bytes_read"] == 0 < solved.figures["loads"]
    assert "recomputation" in solved.figures["memory_plan"]["host"]
    assert ooc("verify", car, tmp_path / "r", "--json").figures["holds"]
    result = ooc_mdp.open_result(tmp_path / "r")
    assert result.provenance == read_virtual_store(car).provenance
    run = ooc("simulate", tmp_path / "r", "--start", "initial", "--duration", 0.1, "--json")
    assert run.figures["problem"] == "mountain-car"
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", CAR, partitions=6, device="cpu")
    with pytest.raises(OptionsError, match="another table than"):
        ooc_mdp.verify(store, tmp_path / "r")
    assert ooc_mdp.verify(store, tmp_path / "r", other_store=True).holds


def test_several_workers_solve_it(car, clusters: Clusters):
    solution = ooc_mdp.solve(car, 0.9, device="cpu", workers=clusters[2], epsilon=1e-3)
    assert solution.outcome.proved
    assert ooc_mdp.verify(car, solution).holds
    with pytest.raises(OptionsError, match="computed, not read from disk: there is nothing to stage"):
        ooc_mdp.solve(car, 0.9, workers=clusters[2], stage=car.parent / "stage")


def test_the_command_line_generates_and_inspects_it(tmp_path):
    made = ("generate", "mountain-car", tmp_path / "v", "--grid", "24,20", "--partitions", 6, "--device", "cpu")
    shown = ooc(*made, "--virtual")
    assert shown.status == 0, shown.err
    assert "virtual: computed on demand, by cpu\n" in shown.out
    assert ooc("inspect", tmp_path / "v").out.splitlines()[:7] == shown.out.splitlines()[:7]
    facts = ooc("inspect", tmp_path / "v", "--json").figures
    store = ooc("generate", "mountain-car", tmp_path / "s", *made[3:], "--json").figures
    assert set(facts) == {*store, "virtual"}
    sizes = ("n_states", "n_state_actions", "n_transitions", "halo", "coupling", "decoded_bytes")
    for name in (*sizes, "geometry", "partitioning"):
        assert facts[name] == store[name], name
    assert (facts["fields"], facts["stored_bytes"], facts["virtual"]) == ({}, 0, True)
    assert sum(file.stat().st_size for file in files_of(tmp_path / "v")) < 60_000


def test_it_appears_whole_and_is_replaced_only_where_that_is_asked(tmp_path, monkeypatch):
    made = ("generate", "GW-8x4", tmp_path / "v", "--virtual")
    assert ooc(*made).status == 0
    assert "exists; choose another name" in refused(*made)
    assert ooc(*made, "--seed", 5, "--overwrite").status == 0
    assert read_virtual_store(tmp_path / "v").provenance["options"]["seed"] == 5
    assert ooc(*made[:3], "--overwrite").status == 0  # a store with chunks in its place, and back
    assert ooc("inspect", tmp_path / "v", "--json").figures["stored_bytes"] > 0
    assert ooc(*made, "--overwrite").status == 0
    assert [p.name for p in tmp_path.iterdir()] == ["v"]

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(virtual_store.SealedGroupWriter, "seal", fail)
    before = read_virtual_store(tmp_path / "v").provenance["time"]
    with pytest.raises(StoreError, match="no room"):
        ooc_mdp.generate("GW-8x4", tmp_path / "v", overwrite=True, virtual=True)
    assert [p.name for p in tmp_path.iterdir()] == ["v"]
    assert read_virtual_store(tmp_path / "v").provenance["time"] == before


def test_a_place_that_another_process_writes_is_refused(tmp_path):
    with locked_output(tmp_path / "v"):
        said = refused("generate", "GW-8x4", tmp_path / "v", "--virtual")
    assert "another process is writing" in said
    assert not any(tmp_path.iterdir())


def test_zarr_reads_what_it_records(car):
    group = zarr.open_group(car, mode="r")
    for name, values in read_virtual_store(car).summary.arrays().items():
        np.testing.assert_array_equal(group[name][:], values, name)


@pytest.mark.parametrize("option", [["--resume"], ["--workers", 2], ["--scheduler", "tcp://a:1"]])
def test_options_of_stores_with_chunks_are_refused(option, tmp_path):
    said = refused("generate", "GW-8x4", tmp_path / "v", "--virtual", *option)
    assert "leave out resume, workers and scheduler (--resume, --workers, --scheduler), or virtual" in said
    assert not any(tmp_path.iterdir())


def test_the_name_of_a_problem_in_place_of_a_store_is_refused_with_the_remedy(tmp_path):
    for command in (("solve", "problem:mountain-car", "--discount", 0.9), ("verify", "problem:mountain-car", tmp_path)):
        assert "ooc-mdp generate mountain-car STORE --virtual" in refused(*command)
    for function in (ooc_mdp.open_store, lambda store: ooc_mdp.solve(store, 0.9)):
        with pytest.raises(OptionsError, match=r"problem:leak\.py is no store: write a virtual one"):
            function("problem:leak.py")


# Damage


def content(table: TableDescription) -> tuple[object, ...]:
    arrays = {name: array.tobytes() for name, array in table.summary.arrays().items()}
    states = [table.order.states(p).tobytes() for p in range(table.summary.n_partitions)]
    return arrays, states, table.summary.facts(), table.facts("table").attributes


def refused_or_the_same(path: Path, damage: Iterator[str]) -> tuple[int, int]:
    """How many kinds of damage were refused, and how many changed nothing; fails at any that changed something."""
    whole = content(read_virtual_store(path))
    said: list[str] = []
    same = 0
    for what in damage:
        try:
            read = read_virtual_store(path)
        except StoreError as error:
            said.append(str(error))
        else:
            assert content(read) == whole, what
            same += 1
    for message in said:
        assert str(path) in message
        assert any(remedy in message for remedy in ("generate it again", "make the store again", "by this program"))
    return len(said), same


def test_any_damage_is_refused_or_changes_nothing(car, tmp_path):
    path = tmp_path / "v"
    shutil.copytree(car, path)
    for file in files_of(path):
        refusals, same = refused_or_the_same(path, damaged(file, 20, 3))
        used = file.name != "zarr.json" or file.parent == path
        assert (refusals > 0) == used, file
        assert used == (same == 0) or file.name == "zarr.json", file  # white space in JSON


def test_files_exchanged_missing_or_of_another_store_are_refused_or_change_nothing(car, tmp_path):
    path, other = tmp_path / "v", tmp_path / "w"
    shutil.copytree(car, path)
    ooc_mdp.generate("mountain-car", other, {**CAR, "thrust": 5.0}, partitions=6, device="cpu", virtual=True)
    chunks = [file for file in files_of(path) if file.name != "zarr.json"]
    different = [file for file in chunks if file.read_bytes() != (other / file.relative_to(path)).read_bytes()]
    assert len(different) > 5
    refusals, same = refused_or_the_same(path, replaced(different, path, other))
    assert (refusals, same) == (2 * len(different), 0)
    refusals, _ = refused_or_the_same(path, exchanged(chunks))
    assert refusals > 100


def changed(path: Path, change: Any) -> None:
    """Change the attributes of a store and seal them again."""
    document = json.loads((path / "zarr.json").read_bytes())
    change(document["attributes"])
    document["attributes"]["digest"] = digest_of(document["attributes"])
    (path / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        (None, "more", 1),
        ("table", "more", 1),
        ("table", "dtype", "float16"),
        ("table", "sense", None),
        ("table", "actions_per_state", -1),
        ("table", "actions_per_state", 2.0),
        ("table", "actions_per_state", 2),
        ("table", "successors_per_action", 10**30),
        ("table", "table_version", 2),
        ("about", "provenance", {"format": "numpy"}),
        ("table", "successors", "int64"),
        ("table", "initial_values", 0),
        ("table", "state_order", {"kind": "identity"}),
        ("table", "state_order", {"kind": "grid", "shape": [24, 20], "edges": 3}),
        ("table", "state_order", {"kind": "grid", "shape": [20, 24], "edges": [[0, 20], [0, 24]], "block_shape": [1]}),
        ("table", "state_order", {"kind": "array"}),
        ("table", "state_order", {"kind": "grid", "shape": [10**9] * 3000, "edges": [[0, 10**9]] * 3000}),
        ("table", "state_order", {"kind": "grid", "shape": [1, 10**30], "edges": [[0, 1], [0, 10**30]]}),
        ("about", "more", 1),
        ("about", "provenance", {}),
        ("about", "geometry", []),
        (None, "format_version", 2),
    ],
)
def test_attributes_that_the_format_does_not_have_are_refused(group, name, value, car, tmp_path):
    path = tmp_path / "v"
    shutil.copytree(car, path)
    if isinstance(value, dict) and "format" in value:
        value = {**read_virtual_store(path).provenance, **value}
    changed(path, lambda attributes: (attributes if group is None else attributes[group]).update({name: value}))
    if value == {"kind": "identity"}:  # which these partitions could have, and the problem does not
        with pytest.raises(StoreError, match="gives another table now"):
            ooc_mdp.open_store(path)
        return
    with pytest.raises(StoreError, match=r"/v (is|was) .*generate it again"):
        ooc_mdp.open_store(path)
    if name != "more":
        changed(path, lambda attributes: (attributes if group is None else attributes[group]).pop(name))
        with pytest.raises(StoreError, match=r"generate it again"):
            ooc_mdp.open_store(path)


def test_a_grid_larger_than_the_table_is_refused_before_anything_of_its_size_is_allocated(car, tmp_path):
    path = tmp_path / "v"
    shutil.copytree(car, path)
    grid = {"kind": "grid", "shape": [10**12], "edges": [[0, 10**12]], "block_shape": [10**12]}
    changed(path, lambda attributes: attributes["table"].update(state_order=grid))
    said = refused("inspect", path)
    assert "a grid of 1000000000000 points in 1 blocks is not the table's, of 480 states in 6 partitions" in said
    assert "generate it again" in said


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("partition_ptr", lambda ptr: ptr + 1),
        ("partition_ptr", lambda ptr: ptr[::-1]),
        ("partition_ptr", lambda ptr: ptr[:1]),
        ("partition_ptr", lambda ptr: np.delete(ptr, 1)),
        ("coupling_ptr", lambda ptr: ptr[::-1]),
        ("coupling_ptr", lambda ptr: ptr + 1),
        ("coupling_partitions", lambda partitions: partitions.astype(float)),
        ("coupling_partitions", lambda partitions: partitions + 3),
        ("boundary", lambda bits: bits[:-1]),
        ("reward_range", lambda ranges: ranges[:, :1]),
        ("partition_rows", lambda rows: rows + 1),
        ("max_successors", lambda longest: longest - 1),
        ("reward_range", lambda ranges: ranges[:, ::-1] * np.nan),
        ("coupling_mass", lambda mass: mass + 2),
        ("more", lambda _: np.arange(3)),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(name, change, car, tmp_path, monkeypatch):
    known = read_virtual_store(car)
    arrays = known.summary.arrays()
    monkeypatch.setattr(virtual_store, "_arrays", lambda _: {**arrays, name: change(arrays.get(name))})
    virtual_store._write(tmp_path, known)
    with pytest.raises(StoreError, match=r"is damaged .*generate it again"):
        read_virtual_store(tmp_path)


def test_rows_that_grow_longer_than_recorded_are_refused():
    class Longer(ModelProblem):
        later = False

        def rows(self, states: IntArray) -> Rows:
            """Two rows of two transitions, later one of three and one of one."""
            computed = super().rows(states)
            longer = dataclasses.replace(computed, successor_ptr=np.array([0, 3, 4, 5]))
            return longer if self.later else computed

    two = Action(1.0, {0: 0.5, 1: 0.5})
    problem = Longer(Model((State((two,)), State((two,)), State((Action(0.0, {2: 1.0}),)))))
    table = RecomputedTable.after_first_pass(problem, ConvertOptions(partitions=1, threads=1))
    table.read(0)
    problem.later = True
    with pytest.raises(InputError, match=r"rows of more than 2 transitions, the most before"):
        table.read(0)


def test_neither_kind_of_store_is_taken_for_the_other(car, tmp_path):
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s")
    with pytest.raises(StoreError, match="is a virtual store, which has no chunks; open it with"):
        ooc_mdp.store.open_store(car)
    with pytest.raises(StoreError, match="not a virtual one"):
        read_virtual_store(store.path)
    assert "does not exist" in refused("inspect", tmp_path / "none")


# What the program or the machine gives now


def test_a_problem_that_gives_other_rows_now_is_refused(car, monkeypatch):
    rows = DiscretisedProblem.rows

    def other(self: DiscretisedProblem, states: IntArray) -> Rows:
        computed = rows(self, states)
        return dataclasses.replace(computed, rewards=computed.rewards + 1.0)

    monkeypatch.setattr(DiscretisedProblem, "rows", other)
    with pytest.raises(StoreError, match=r"gives another table now than when .*generate it again"):
        ooc_mdp.open_store(car)


def test_validation_computes_every_partition_again(car, monkeypatch):
    assert "6 partitions checked, 0 findings" in ooc("check", car).out
    opened = ooc_mdp.open_store(car)
    rows = DiscretisedProblem.rows

    def other(self: DiscretisedProblem, states: IntArray) -> Rows:
        computed = rows(self, states)
        return dataclasses.replace(computed, rewards=computed.rewards - 7.0)

    monkeypatch.setattr(DiscretisedProblem, "rows", other)
    report = opened.check()
    assert [finding.field for finding in report.findings] == ["reward_range"]
    assert "generate it again" in str(report.findings[0])


@pytest.mark.parametrize("origin", [{"source": "none"}, {"options": {"grid": "24,20", "wings": 2}}, {"options": {}}])
def test_a_problem_that_cannot_be_made_any_more_is_refused(origin, car, tmp_path):
    shutil.copytree(car, tmp_path / "v")
    changed(tmp_path / "v", lambda attributes: attributes["about"]["provenance"].update(origin))
    with pytest.raises(StoreError, match="generate it again"):
        ooc_mdp.open_store(tmp_path / "v")


def test_rows_of_a_device_need_that_device(car, tmp_path):
    shutil.copytree(car, tmp_path / "v")
    changed(tmp_path / "v", lambda attributes: attributes["about"]["provenance"].update(device="cuda:77"))
    with pytest.raises(OptionsError, match=r"/v are computed by cuda:77: .*; open it on a machine with that device"):
        ooc_mdp.open_store(tmp_path / "v")
    assert "by cuda:77" in ooc("inspect", tmp_path / "v").out


class _Device:
    """In place of a device: its rows are the CPU's."""

    name = "cuda:3"

    def rows(self, discretised: DiscretisedProblem, states: IntArray) -> Rows:
        return discretised.__class__.__base__.rows(discretised, states)


def test_rows_of_a_device_are_computed_by_that_device_again(tmp_path, monkeypatch):
    problem = DeviceProblem(make_problem("mountain-car", CAR), _Device())  # type: ignore[arg-type]
    made = generate_virtual(problem, tmp_path / "v", ConvertOptions(partitioner="ranges", partitions=4))
    asked: list[str] = []

    def select(made_again: DiscretisedProblem, device: str) -> DeviceProblem:
        asked.append(device)
        return DeviceProblem(made_again, _Device())  # type: ignore[arg-type]

    monkeypatch.setattr(virtual_store, "select_rows", select)
    opened = ooc_mdp.open_store(tmp_path / "v")
    assert asked == ["cuda:3"]
    assert opened.fingerprint == made.fingerprint
    options = {"partitioner": "ranges", "partitions": 4, "dtype": "float64", "device": "cpu"}
    assert opened.fingerprint != ooc_mdp.open_problem("mountain-car", CAR, **options).fingerprint


@pytest.mark.gpu
def test_a_gpu_computes_the_tables_of_its_virtual_store(tmp_path):
    options = {"partitions": 12, "dtype": "float32", "device": "cuda:0"}
    store = ooc_mdp.generate("double-pendulum", tmp_path / "s", {"grid": "6,6,6,6"}, **options)
    ooc_mdp.generate("double-pendulum", tmp_path / "v", {"grid": "6,6,6,6"}, virtual=True, **options)
    opened = ooc_mdp.open_store(tmp_path / "v")
    assert opened.loader("cuda:0").on_device
    assert_equal_sources(store, opened)
