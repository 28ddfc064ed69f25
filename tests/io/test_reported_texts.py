"""Files that users reported: each gives the model that it means, or a message that names what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import CASES
from text_models import whole

from ooc_mdp.errors import InputError
from ooc_mdp.io.registry import ReadOptions, open_source

REPORTED = CASES / "turn3"
GO = [{0: 0.25, 1: 0.75}, {2: 1.0}]
THIRDS = {0: 0.333333, 1: 0.333333, 2: 0.333333}
MODEL = [GO, [{0: 0.5, 2: 0.5}], [{2: 1.0}]]
READ = {
    "drn-label-bang/bangnor.drn": [[{0: 0.5, 1: 0.5}], [{1: 1.0}]],
    "prism-exact-fractions/exact.tra": MODEL,
    "prism-gz-named-format/z.tra.gz": MODEL,
    "prism-six-digits/six.tra": [[THIRDS], [{0: 0.166667, 1: 0.833333}], [{1: 0.5, 2: 0.5}]],
}
REFUSED = {
    "prism-interval/imdp.tra": "this is an interval MDP",
    "prism-pexp/m.pexp": r"this is PRISM's export in one file \(\.pexp",
}
pytestmark = pytest.mark.skipif(not REPORTED.is_dir(), reason="the shared cases are not here")


def read(path: Path, format: str | None) -> list[list[dict[int, float]]]:
    source = open_source(str(path), format, ReadOptions())
    try:
        blocks = [block() for block in source.blocks()]
        source.check_totals()
    finally:
        source.close()
    return whole(blocks).rows


@pytest.mark.parametrize("name", READ)
def test_a_reported_file_gives_the_model_that_it_means(name: str) -> None:
    for format in (None, "drn" if name.endswith("drn") else "prism"):
        assert read(REPORTED / name, format) == READ[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_reported_file_of_another_kind_is_named(name: str) -> None:
    for format in (None, "prism"):
        with pytest.raises(InputError, match=REFUSED[name]):
            read(REPORTED / name, format)
