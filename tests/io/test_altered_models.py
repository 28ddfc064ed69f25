"""Models with one entry altered, in every format: refused, or read as exactly what the altered model says.

Each example is decided by its number alone: `examine("prism", 4711, folder)` repeats one.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from altered_arrays import ArraysMaker, MdptoolboxMaker
from altered_quantecon import QuantEconMaker
from altered_tables import GymnasiumMaker
from altered_text import TEXT_FORMATS
from altered_umb import UmbMaker
from exact_rows import Exact, Invalid, differences, exact_values
from paths import place_in_memory

import ooc_mdp
from ooc_mdp.errors import OocMdpError
from ooc_mdp.io.registry import FORMAT_NAMES, ReadOptions, open_source

MAKERS: dict[str, Any] = {
    maker.name: maker
    for maker in (*TEXT_FORMATS, ArraysMaker(), MdptoolboxMaker(), QuantEconMaker(), UmbMaker(), GymnasiumMaker())
}
QUICK = 200
"""Examples of each format."""
SLOW = 100_000
"""Examples of all formats together."""
SEGMENTS = (1, 100, 1 << 20)


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let gymnasium.make return the environment that was made last."""
    if importlib.util.find_spec("gymnasium") is not None:
        monkeypatch.setattr("gymnasium.make", lambda name, **arguments: MAKERS["gymnasium"].made)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir=place_in_memory()) as place:
        yield Path(place)


def examine(name: str, number: int, folder: Path, altered: bool = True, solved: bool = False) -> str:
    """Read one example: "refused", "read" or "solved"; an AssertionError where it gives another model."""
    rng = Random(f"{name} {number}")
    shutil.rmtree(folder)
    folder.mkdir()
    source, options, meaning = MAKERS[name].make(rng, folder, altered)
    refusal: OocMdpError | None = None
    said = ""
    exact = _meaning(meaning)
    try:
        said = _read(source, name, ReadOptions(segment_bytes=rng.choice(SEGMENTS), **options), exact)
    except OocMdpError as error:
        refusal = error
    if refusal is not None:
        assert altered, f"{name} {number}: a valid model is refused: {refusal}"
        assert 0 < len(str(refusal)) < 2000
        return "refused"
    assert not said, f"{name} {number}: {said}"
    assert exact is not None
    return _solved(name, number, source, options, exact, folder) if solved else "read"


def _read(source: str, name: str, options: ReadOptions, exact: Exact | None) -> str:
    """Read a source to its end: how it differs from a model, where there is one."""
    opened = open_source(source, name, options)
    try:
        if exact is not None:
            return differences(opened, exact)
        for read in opened.blocks():
            read()
        opened.check_totals()
        return "it is read, but is no model"
    finally:
        opened.close()


def _meaning(meaning: Any) -> Exact | None:
    try:
        return meaning()
    except Invalid:
        return None


def _solved(name: str, number: int, source: str, options: dict[str, Any], exact: Exact, folder: Path) -> str:
    """Solve the example and compare the proved bound with the exact values."""
    if any(sum(row.probabilities.values()) != 1 or row.duration != 1 for rows in exact.rows for row in rows):
        return "read"
    values = exact_values(exact, Fraction(1, 2))
    largest = float(max(1, *map(abs, values)))
    store = folder / "store"
    ooc_mdp.convert(source, store, format=name, sense="max", **options)
    solution = ooc_mdp.solve(store, discount=0.5, epsilon=1e-6 * largest)
    assert solution.outcome.proved
    allowed = Fraction(solution.error_bound) + Fraction(1e-12 * largest)  # the table's own numbers are rounded
    for got, value in zip(solution.values.ravel().tolist(), values, strict=True):
        assert abs(Fraction(got) - value) <= allowed, f"{name} {number}: {got}, not {float(value)}"
    return "solved"


def test_every_format_has_its_altered_models():
    assert set(MAKERS) == set(FORMAT_NAMES)


def needed(name: str) -> None:
    if name == "gymnasium":
        pytest.importorskip("gymnasium")


@pytest.mark.parametrize("name", MAKERS)
def test_a_model_that_was_not_altered_is_read_exactly(name, folder):
    needed(name)
    assert {examine(name, number, folder, altered=False) for number in range(40)} == {"read"}


@pytest.mark.parametrize("name", MAKERS)
def test_an_altered_model_is_refused_or_read_as_it_now_is(name, folder):
    needed(name)
    outcomes = Counter(examine(name, number, folder) for number in range(QUICK))
    assert min(outcomes["read"], outcomes["refused"]) >= QUICK // 20


@pytest.mark.parametrize("name", MAKERS)
def test_the_values_of_an_altered_model_are_proved_within_the_bound(name, folder):
    needed(name)
    outcomes = (examine(name, number, folder, solved=True) for number in range(QUICK, 2 * QUICK))
    assert list(islice((outcome for outcome in outcomes if outcome == "solved"), 4)) == ["solved"] * 4


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_many_altered_models_are_refused_or_read_as_they_now_are(name, folder):
    needed(name)
    first, last = QUICK, QUICK + SLOW // len(MAKERS) + 1
    outcomes = Counter(examine(name, number, folder, solved=number % 500 == 0) for number in range(first, last))
    print(f"{name}: {dict(outcomes)}")
    assert min(outcomes["read"], outcomes["refused"]) >= SLOW // len(MAKERS) // 20
