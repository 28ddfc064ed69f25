"""Row layouts of partitions, drawn by Hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ooc_mdp.store.encodings import RowLayout
from ooc_mdp.store.layout import PartitionSizes


@st.composite
def layouts(draw: st.DrawFn, uniform: bool | None = None) -> RowLayout:
    """Any row layout; states without rows and rows of one transition among them."""
    n = draw(st.integers(1, 12))
    if uniform if uniform is not None else draw(st.booleans()):
        a, k = draw(st.integers(1, 4)), draw(st.integers(1, 5))
        return RowLayout(PartitionSizes(n, n * a, n * a * k, 0), a, k)
    actions = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    m = int(actions.sum())
    widths = np.array(draw(st.lists(st.integers(1, 5), min_size=m, max_size=m)), np.int64)
    pointers = [np.concatenate([[0], np.cumsum(x)]).astype(np.uint32) for x in (actions, widths)]
    return RowLayout(PartitionSizes(n, m, int(widths.sum()), 0), 0, 0, *pointers)
