"""Numba's types and code generators, loaded: half of what the first compiled function of a process takes."""

from numba.core.registry import cpu_target

cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()
