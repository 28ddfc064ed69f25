"""Numbers in the rows of ``tiles/rows.cuh``: doubles made of float32 by a shift, discounts by a short series.

And the structures of ``tiles/tiles.cuh``, which host and device must lay out alike.
"""

from __future__ import annotations

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest
from emulated_cuda import EXPORT, compile_library
from hypothesis import example, given
from hypothesis import strategies as st
from model_facts import facts_with

from ooc_mdp.backends.cuda.sources import TILES, read_sources
from ooc_mdp.backends.cuda.tiles import memory
from ooc_mdp.backends.cuda.tiles.layout import SlotLayout, Tiling

STRUCTURES = {"Descriptor": memory._DESCRIPTOR, "Control": memory._CONTROL, "Engine": memory.engine_dtype(1)}
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


def offset_functions(structure: str, dtype: np.dtype[np.void]) -> list[str]:
    """C functions that return the size of a structure and where each of its fields begins."""
    size = f"{EXPORT} int size_{structure}() {{ return (int)sizeof({structure}); }}"
    fields = dtype.names or ()
    return [size] + [f"{EXPORT} int at_{structure}_{f}() {{ return (int)offsetof({structure}, {f}); }}" for f in fields]


@pytest.fixture(scope="module")
def numbers() -> ctypes.CDLL:
    model = facts_with(
        [0, 900],
        partition_bytes=np.array([10_000]),
        partition_halo=np.array([10]),
        block_shapes=np.array([[30, 30]], np.int32),
        actions_per_state=3,
        successors_per_action=3,
        dyadic_probabilities=True,
        probability_dtype=np.dtype(np.float32),
        duration_dtype=np.dtype(np.float32),
    )
    tiling = Tiling.of(model, 64)
    source = (
        read_sources(*TILES)
        + f"""
{EXPORT} double signed_number(float x) {{ return widened(x, 3) * UNITS; }}
{EXPORT} double weight(float x) {{ return widened_weight(x, 3) * UNITS; }}
{EXPORT} double factor(double duration, double discount) {{
    Engine e;
    e.discount = discount;
    e.log_discount = log(discount);
    return factor_of(e, duration);
}}
{EXPORT} double series(double x) {{ return is_short(x) ? short_factor(x) : 0.0; }}
"""
        + "\n".join(line for name, dtype in STRUCTURES.items() for line in offset_functions(name, dtype))
    )
    library = compile_library(source, tuple(SlotLayout.of(model, tiling, True, 64).defines(model, tiling).items()))
    for name, arguments in (("signed_number", 1), ("weight", 1), ("factor", 2), ("series", 1)):
        function = getattr(library, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_double if name in ("factor", "series") else ctypes.c_float] * arguments
    return library


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_host_lays_structures_out_as_the_device_does(numbers: ctypes.CDLL, structure: str) -> None:
    dtype = STRUCTURES[structure]
    assert dtype.fields is not None
    found = {name: getattr(numbers, f"at_{structure}_{name}")() for name in dtype.fields}
    assert found == {name: offset for name, (_, offset, *_) in dtype.fields.items()}
    assert getattr(numbers, f"size_{structure}")() == dtype.itemsize


@given(x=FINITE)
@example(0.0)
@example(-0.0)
@example(1.0)
@example(2.0**-24)
@example(2.0**-149)
@example(float(np.finfo(np.float32).max))
def test_a_float_becomes_the_same_double(numbers: ctypes.CDLL, x: float) -> None:
    assert numbers.signed_number(x) == x
    assert math.copysign(1.0, numbers.signed_number(x)) == math.copysign(1.0, x)
    assert numbers.weight(abs(x)) == abs(x)


def exact_exp(x: float) -> Fraction:
    """Of |x| <= 2^-6, below 2^-100 of it."""
    power, total = Fraction(1), Fraction(0)
    for n in range(1, 20):
        total += power
        power *= Fraction(x) / n
    return total


@given(x=st.floats(-(2.0**-6), 2.0**-6, exclude_min=True, exclude_max=True))
@example(0.0)
@example(-0.015624999999999998)
@example(0.015624999999999998)
def test_the_series_of_a_short_duration_is_off_by_one_rounding(numbers: ctypes.CDLL, x: float) -> None:
    assert abs(Fraction(numbers.series(x)) - exact_exp(x)) <= Fraction(1, 2**52)


@given(duration=st.floats(0, 1e4, width=32), discount=st.floats(0.01, 1.0))
@example(math.inf, 0.9)
@example(math.inf, 1.0)
@example(0.0, 0.9)
@example(1e4, 1.0)
def test_discounts_are_powers_whatever_the_duration(numbers: ctypes.CDLL, duration: float, discount: float) -> None:
    expected = 0.0 if math.isinf(duration) else math.exp(duration * math.log(discount))
    assert numbers.factor(duration, discount) == pytest.approx(expected, rel=4e-16, abs=0.0)
