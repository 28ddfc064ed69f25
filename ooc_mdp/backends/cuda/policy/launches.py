"""The kernels of policy/rows.cu, mixing.cu and krylov.cu on every device of a group, and their launches in step.

    sweep                sweep_rows ─▶ meet                                              x count
    mixing               record ─▶ the host finds weights ─▶ values
    iterate              direction ─▶ meet ─▶ settle ─▶ half ─▶ meet ─▶ minimise ─▶ meet ─▶ settle
                         step ─▶ meet ─▶ settle ─▶ turn ─▶ meet                          x count

On one device a kernel's last block settles, and nothing meets. In a group launches are recorded as one graph, once for
each number of them. When an evaluation sweeps and when it solves is decided in `evaluation.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import Device, Kernel, Stream
from ooc_mdp.backends.cuda.group import DeviceGroup, Meet
from ooc_mdp.backends.cuda.policy.layout import BLOCK, MIXED, PROGRESS, evaluation_dtype, kernel_defines
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray

__all__ = ["DISCOUNTED", "RELATIVE", "Equation", "RowLaunches", "row_kernels"]

_BEGIN = "krylov_begin"
_ITERATION = ("krylov_direction", "krylov_half", "krylov_minimise", "krylov_step", "krylov_turn")
"""The kernels of an iteration of BiCGSTAB."""
_SETTLED = {_BEGIN: 0, "krylov_direction": 1, "krylov_minimise": 2, "krylov_step": 3}
"""Kernels whose sums something is decided by, with the number that krylov_settle knows them by."""
_KERNELS = ("sweep_rows", "sweep_few_rows", "mix_record", "mix_values", _BEGIN, "krylov_apply", *_ITERATION)
_WEIGHTS = np.dtype([("of", "f8", MIXED)])
"""The structure Weights of policy/mixing.cu."""
_MANY = 16
"""Chunks of a block from which on sweeps claim them: with two for each, claims took a tenth longer than strides."""


class Equation(NamedTuple):
    """What the solver solves of a policy, and how its values are measured."""

    source: str
    """Its file, below the folder of the CUDA sources."""
    measure: str
    """A kernel."""


DISCOUNTED = Equation("policy/discounted.cuh", "measure_rows")
RELATIVE = Equation("policy/relative.cuh", "measure_gains")


def row_kernels(
    device: Device, facts: ModelFacts, members: int = 1, equation: Equation = DISCOUNTED
) -> dict[str, Kernel]:
    """For so many devices; compiled where they have not been before."""
    files = read_sources("policy/rows.cuh", "policy/rows.cu", "policy/mixing.cu", equation.source, "policy/krylov.cu")
    names = (*_KERNELS, equation.measure) if members == 1 else (*_KERNELS, equation.measure, "krylov_settle")
    return device.compile(files, kernel_defines(facts, members), names)


class RowLaunches:
    """Of one model's rows.

    Parameters
    ----------
    streams : one of each device, which kernels run on.
    equation : of the policy's values.
    """

    def __init__(
        self, group: DeviceGroup, streams: Sequence[Stream], facts: ModelFacts, equation: Equation = DISCOUNTED
    ) -> None:
        self._group, self._streams, self._equation = group, streams, equation
        self._kernels = [row_kernels(device, facts, len(group), equation) for device in group.devices]
        self._blocks = {
            name: min(kernels[name].blocks_at_once(BLOCK, 0) for kernels in self._kernels) for name in self._kernels[0]
        }
        self.evaluations: list[npt.NDArray[Any]] = [np.zeros((), evaluation_dtype(len(group))) for _ in group.devices]
        """The structure Evaluation of each device."""
        self._progress = [device.pinned(PROGRESS.itemsize).view(PROGRESS) for device in group.devices]
        self._graphs: dict[tuple[str, int, bool], Callable[[], None]] = {}

    @property
    def most_blocks(self) -> int:
        """Of any kernel on a device."""
        return max(self._blocks.values())

    def forget_graphs(self) -> None:
        """Structures have changed, of which graphs have copies."""
        self._graphs.clear()

    def begin_batch(self, stop: float) -> None:
        """Sweeps, or a solver's iterations, that end at a change, or residual, of `stop`."""
        for evaluation, progress, stream in zip(self.evaluations, self._progress, self._streams, strict=True):
            progress[0] = 0
            progress["stop"] = stop
            stream.upload(int(evaluation["progress"]), progress)

    def progress(self) -> Any:
        """How far the devices have come, together; waits for them."""
        for evaluation, progress, stream in zip(self.evaluations, self._progress, self._streams, strict=True):
            stream.download(progress, int(evaluation["progress"]))
        self.wait()
        whole = self._progress[0][0].copy()
        for name in ("change", "size"):
            whole[name] = np.max([progress[name][0] for progress in self._progress], axis=0)
        return whole

    def sweep(self, count: int, back: bool) -> None:
        """Sweeps in alternating directions; `back`: the first goes backwards."""
        chunks = max(int(evaluation["count"]) for evaluation in self.evaluations)
        name = "sweep_rows" if chunks >= _MANY * self._blocks["sweep_rows"] else "sweep_few_rows"

        def launches(meet: Meet) -> None:
            for i in range(count):
                self._launch(name, np.int32(i), np.int32(back ^ (i % 2 == 1)))
                meet()

        self._run(("sweep", count, back), launches)

    def begin_mixing(self, nbytes: int) -> None:
        """The next batch of sweeps begins at the values as they are, of so many bytes."""
        first = self.evaluations[0]
        self._group.copy(self._streams, int(first["z"]), int(first["values"]), nbytes)

    def record_batch(self, slot: int, kept: int) -> FloatArray:
        """float64 [SUMS]; of `mix_record` over the states of all devices; waits for them."""
        self._launch("mix_record", np.int32(slot), np.int32(kept))
        self.progress()
        return np.sum([progress["sums"][0] for progress in self._progress], axis=0)

    def mix_values(self, weights: FloatArray) -> None:
        """Values as the weights of the directions that are kept have them."""
        of = np.zeros((), _WEIGHTS)
        of["of"][: weights.size] = weights
        self._launch("mix_values", of, np.int32(weights.size))

    def begin_solver(self) -> None:
        """What is missing is not known yet."""
        self._run((_BEGIN, 1, False), lambda meet: self._step(_BEGIN, meet))

    def iterate(self, count: int) -> None:
        """Iterations of the solver."""

        def launches(meet: Meet) -> None:
            for _ in range(count):
                for name in _ITERATION:
                    self._step(name, meet)

        self._run(("iterate", count, False), launches)

    def take_over(self) -> None:
        """What the solver has found becomes part of the values; waits for it."""
        self._run(("krylov_apply", 1, False), lambda meet: self._launch("krylov_apply"))
        self.wait()

    def measure(self) -> None:
        """All that has rows, into each device's results."""
        self._group.meet(self._streams)
        self._launch(self._equation.measure)

    def wait(self) -> None:
        """Until everything so far is done on all devices."""
        for stream in self._streams:
            stream.wait()

    def _step(self, name: str, meet: Meet) -> None:
        """A kernel of the solver, and what is decided after it."""
        self._launch(name)
        meet()
        if name in _SETTLED and len(self._group) > 1:
            for evaluation, kernels, stream in zip(self.evaluations, self._kernels, self._streams, strict=True):
                kernels["krylov_settle"](stream, 1, 32, (evaluation, np.int32(_SETTLED[name])))

    def _launch(self, name: str, *args: np.generic | npt.NDArray[Any]) -> None:
        """A kernel over all chunks of each device."""
        for evaluation, kernels, stream in zip(self.evaluations, self._kernels, self._streams, strict=True):
            kernels[name](stream, self._blocks[name], BLOCK, (evaluation, *args))

    def _run(self, key: tuple[str, int, bool], launches: Callable[[Meet], None]) -> None:
        """Launches that depend on nothing but the key and the structures."""
        if len(self._group) == 1:
            launches(lambda: None)
            return
        if key not in self._graphs:
            self._graphs[key] = self._group.graph(self._streams, launches)
        self._graphs[key]()
