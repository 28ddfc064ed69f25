"""What reading one block of a source holds, and the refusal of a block for which RAM has no room.

A block has whole states, and at least one of them: a state with very many actions or successors makes a large block,
whatever the size of the others. A reader that knows a block's size calls this before it reads it.
"""

from __future__ import annotations

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.memory import available_bytes

__all__ = ["ENTRY_BYTES", "TEXT_BYTES", "check_block_memory"]

ENTRY_BYTES = 80
"""For each row and each transition of arrays: as they are read, as checked rows, and as they are written."""
TEXT_BYTES = 8
"""For each byte of text, of lines of a dozen bytes or more: the line itself, its columns, and the same."""


def check_block_memory(path: str, first_state: int, n_states: int | None, n_bytes: int) -> None:
    """Refuse to read a block for which RAM has no room.

    Parameters
    ----------
    path : of the source, for the message.
    first_state, n_states : which states it has; None where their number is not known.
    n_bytes : that reading it holds.

    Raises
    ------
    MemoryBudgetError : `n_bytes` is more than the RAM that is available.
    """
    available = available_bytes()
    if available is None or n_bytes <= available:
        return
    which = f"state {first_state}" if n_states == 1 else f"the states from {first_state} on"
    raise MemoryBudgetError(
        f"{path}: reading {which}, whose rows are read together, takes about {format_bytes(n_bytes)} of RAM, and "
        f"{format_bytes(available)} are available; use a machine with so much memory, or split states with so many "
        "actions or successors"
    )
