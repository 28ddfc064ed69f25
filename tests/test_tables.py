"""convert, generate and open_problem share the keywords that say how a table is made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ooc_mdp
from ooc_mdp.backends.compiling import COMPILING_FUNCTIONS
from ooc_mdp.errors import OptionsError

SHARED = (
    "dtype",
    "sense",
    "partitioner",
    "partition_size",
    "partitions",
    "partition_grid",
    "partition_shape",
    "threads",
)
LONG = pytest.param("cuda:" + "9" * 5000, id="cuda:99...")
MAKERS = [ooc_mdp.convert, ooc_mdp.generate, ooc_mdp.open_problem]


@pytest.mark.parametrize("maker", MAKERS)
def test_signatures_list_each_keyword_with_its_type_and_default(maker: Callable[..., Any]) -> None:
    parameters = inspect.signature(maker).parameters
    for name in SHARED:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default is None
        assert str(parameters[name].annotation).endswith("| None")
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize("maker", MAKERS)
def test_docstrings_explain_every_parameter(maker: Callable[..., Any]) -> None:
    lines = [line.strip() for line in (inspect.getdoc(maker) or "").splitlines()]
    explained = {name for line in lines if " : " in line for name in line.partition(" : ")[0].split(", ")}
    assert set(inspect.signature(maker).parameters) <= explained


@pytest.mark.parametrize(
    ("maker", "arguments", "wrong", "meant"),
    [
        (ooc_mdp.convert, ("model.tra", "model.zarr"), "partition_sise", "partition_size"),
        (ooc_mdp.generate, ("GW-8x4", "maze.zarr"), "overwite", "overwrite"),
        (ooc_mdp.open_problem, ("GW-8x4",), "partition_shapes", "partition_shape"),
    ],
)
def test_an_unknown_keyword_is_a_type_error_that_names_the_likely_one(
    maker: Callable[..., Any], arguments: tuple[str, ...], wrong: str, meant: str
) -> None:
    message = rf"^{maker.__name__}\(\) got an unexpected keyword argument '{wrong}'; did you mean '{meant}'\?$"
    with pytest.raises(TypeError, match=message):
        maker(*arguments, **{wrong: 1})


def test_a_keyword_that_resembles_none_is_a_type_error_too() -> None:
    with pytest.raises(TypeError, match=r"^generate\(\) got an unexpected keyword argument 'zzz'$"):
        ooc_mdp.generate("GW-8x4", "maze.zarr", zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("problem", ["GW-8x4", "random", "mountain-car"])
@pytest.mark.parametrize("device", ["nonsense", "", "cuda:", "cuda:-1", "cuda:0.5", "CPU", LONG])
def test_an_unknown_device_is_refused_for_every_problem(problem: str, device: str, tmp_path: Path) -> None:
    makers = (
        lambda: ooc_mdp.open_problem(problem, device=device),
        lambda: ooc_mdp.generate(problem, tmp_path / "s", device=device),
        lambda: ooc_mdp.generate(problem, tmp_path / "s", device=device, virtual=True),
    )
    for make in makers:
        with pytest.raises(OptionsError, match=r"^unknown device '.*'; there are cpu, cuda:0") as refusal:
            make()
        assert len(str(refusal.value)) < 200
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_is_not_accepted_for_rows_that_it_cannot_compute() -> None:
    with pytest.raises(OptionsError, match="cuda:0 computes rows of control problems only, not those of 'random'"):
        ooc_mdp.open_problem("random", device="cuda:0")


def test_a_source_with_a_grid_is_cut_into_blocks_as_a_problem_is(tmp_path: Path) -> None:
    ring = [f"{state} 0 {(state + 1) % 16} 1.0" for state in range(16)]
    (tmp_path / "ring.txt").write_text("\n".join(ring) + "\n")
    (tmp_path / "rewards.txt").write_text("1.0\n" * 16)
    store = ooc_mdp.convert(
        tmp_path / "ring.txt",
        tmp_path / "ring.zarr",
        rewards=tmp_path / "rewards.txt",
        grid=(4, 4),
        partition_grid=(2, 2),
    )
    assert store.n_partitions == 4
    assert store.facts.attributes["partitioning"] == {"method": "grid", "block_shape": [2, 2]}


def test_a_generation_notes_that_functions_of_a_control_problem_are_compiled_and_for_no_other(tmp_path: Path) -> None:
    file = tmp_path / "drift.py"
    file.write_text(
        "from ooc_mdp import Axis, ControlProblem\n\n"
        "def dynamics(state, control, p):\n    return (control[0] - 0.125 * state[0],)\n\n"
        'problem = ControlProblem("drift", "", (Axis("x", 0.0, 1.0),), ((1.0,),), dynamics)\n'
    )
    said: list[str] = []
    ooc_mdp.generate(file, tmp_path / "d.store", {"grid": 5}, device="cpu", note=said.append)
    assert said[0] == COMPILING_FUNCTIONS
    said.clear()
    ooc_mdp.generate("random", tmp_path / "r.store", {"states": 9}, note=said.append)
    assert COMPILING_FUNCTIONS not in said
