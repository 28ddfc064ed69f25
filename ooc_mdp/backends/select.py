"""Choose by the word for --device: a backend for a solve, a maker of rows for a problem."""

from __future__ import annotations

import re
from collections.abc import Callable

from ooc_mdp.backends.base import Backend
from ooc_mdp.backends.device_kernels import device_kernels
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import DEFAULT_KERNEL, Stopping, SweepOrder
from ooc_mdp.problems.problem import Problem
from ooc_mdp.quoting import quote

__all__ = ["cuda_numbers", "select_backend", "select_rows"]


def select_backend(
    device: str,
    sweep_order: SweepOrder = "alternating",
    kernel: str = DEFAULT_KERNEL,
    threads: int | None = None,
    stopping: Stopping | None = None,
    facts: ModelFacts | None = None,
) -> Backend:
    """The backend for "cpu", "cuda:N", "cuda:N,M", "cuda" or "auto".

    Parameters
    ----------
    sweep_order : of the CPU's own engine.
    kernel : a word of :data:`~ooc_mdp.backends.device_kernels.DEVICE_KERNELS`. The CPU's own engine is its default; a
        simple kernel's schedule runs there in NumPy.
    threads : that sweep on the CPU; None for all cores.
    stopping : when visits of a simple kernel look whether they may end.
    facts : of the model, for which "cuda" takes all devices where they are expected to be faster; None: the first.

    Raises
    ------
    OptionsError : no such word, no such device, a kernel that a CUDA device alone has, `stopping` for a kernel that is
        not simple, or several devices for one, or that do not reach each other's memory.
    MissingExtraError : CuPy is not installed and a CUDA device was asked for by name.
    """
    chosen = device_kernels(kernel, stopping)
    numbers = cuda_numbers(device)
    if not numbers:
        if kernel != DEFAULT_KERNEL:
            if chosen.on_cpu is None:
                raise OptionsError(f"--kernel {kernel} needs a CUDA device; give --device cuda:0, or another kernel")
            return chosen.on_cpu()
        from ooc_mdp.backends.cpu.backend import CpuBackend

        return CpuBackend(sweep_order, threads)
    if facts is not None and device == "cuda" and chosen.on_group is not None:
        from ooc_mdp.backends.cuda.choice import numbers_for

        numbers = numbers_for(facts)
    if len(numbers) == 1:
        return chosen.backend(numbers[0])
    if chosen.on_group is None:
        raise OptionsError(
            f"--kernel {kernel} runs on one device; give --device cuda:{numbers[0]}, or leave --kernel out"
        )
    return chosen.on_group(numbers)


def select_rows(problem: Problem, device: str, note: Callable[[str], None] | None = None) -> Problem:
    """The problem, its rows computed by what `device` says: "cpu", "cuda:N" (of several the first) or "auto".

    Only control problems' rows can come from a GPU; "auto" leaves all others, those whose functions cannot be
    translated (`note` is called with the reason) and all on a machine without a GPU to the CPU.

    Raises
    ------
    OptionsError : no such word or device, or a CUDA device was asked for by name and cannot compute these rows.
    MissingExtraError : CuPy is not installed and a CUDA device was asked for by name.
    """
    if device == "cpu":
        return problem
    from ooc_mdp.problems.control.discretisation import DiscretisedProblem

    numbers = cuda_numbers(device)
    if not numbers:
        return problem
    if not isinstance(problem, DiscretisedProblem):
        if device == "auto":
            return problem
        raise OptionsError(f"{device} computes rows of control problems only, not those of {problem.name!r}; take cpu")
    from ooc_mdp.backends.cuda.control.rows import ControlRows, DeviceProblem, kernel_source

    source = ControlRows(numbers[0])
    try:
        kernel_source(problem)
    except OptionsError as error:
        if device != "auto":
            raise
        if note is not None:
            note(f"the CPU computes the rows: {error}")
        return problem
    return DeviceProblem(problem, source)


def cuda_numbers(device: str, visible: int | None = None) -> tuple[int, ...]:
    """Numbers of the CUDA devices that a word names, none for the CPU.

    Parameters
    ----------
    visible : how many the process that will use them sees, on which "auto" depends; None for this process.

    Raises
    ------
    OptionsError : no such word, or it names a device twice.
    """
    if device == "cpu":
        return ()
    match = re.fullmatch(r"cuda(?::([0-9]{1,6}(?:,[0-9]{1,6})*))?", device)
    if match is not None:
        numbers = tuple(map(int, (match[1] or "0").split(",")))
        if len(set(numbers)) < len(numbers):
            raise OptionsError(f"--device {quote(device)} names a device twice; name each of them once")
        return numbers
    if device != "auto":
        raise OptionsError(
            f"unknown device {quote(device)}; there are cpu, cuda:0 (or another number), cuda:0,1 (several as one), "
            "and auto"
        )
    if visible is None:
        from ooc_mdp.backends.cuda.device import device_count

        visible = device_count()
    return (0,) if visible > 0 else ()
