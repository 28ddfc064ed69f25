"""The tokenizer's numbers are Python's, bit for bit, and nothing else is a number."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from ooc_mdp.io.text import columns, numbers
from ooc_mdp.io.text.errors import Field, number_error
from ooc_mdp.io.text.lines import mark_lines, next_state

digits = st.text("0123456789", min_size=1, max_size=25)
exponents = st.one_of(
    st.just(""),
    st.builds(lambda e, n: f"{e}{n}", st.sampled_from("eE"), st.integers(-60, 60)),
    st.builds(lambda n: f"e{n:+d}", st.integers(-400, 400)),
)
decimals = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-", "+"]),
    digits,
    st.one_of(st.just(""), st.just("."), digits.map(lambda text: "." + text)),
    exponents,
)


def parse(text: bytes, n_integers: int = 0, word: bool = False, capacity: int = 8):
    buffer = np.frombuffer(text + b"\n", np.uint8).copy()
    ints = np.zeros((n_integers, capacity), np.int64)
    floats = np.zeros((1, capacity))
    offsets = np.zeros(capacity, np.int64)
    slow = np.zeros((numbers.SLOW_SLOTS, 3), np.int64)
    _, count, n_slow, bad = columns.parse_columns(
        buffer, 0, buffer.size, (n_integers, word), np.empty((capacity, 2), np.int64), 0, ints, floats, offsets, slow
    )
    for index, begin, end in slow[:n_slow].tolist():
        floats[0, index] = numbers.nearest_double(text[begin:end].decode())
    return ints[:, :count], floats[0, :count], offsets[:count], n_slow, bad


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


@seed(20261121)
@settings(max_examples=2000, deadline=None)
@given(decimals)
@example("9007199254740993")
@example("0.30000000000000004")
@example("5e-324")
@example("1.7976931348623157e308")
@example("-0")
@example(".5")
def test_a_decimal_is_the_nearest_double_as_python_reads_it(text: str) -> None:
    _, floats, _, _, bad = parse(text.encode())
    assert not bad
    assert bits(floats[0]) == bits(float(text))


@seed(20261122)
@settings(max_examples=1000, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["repr", ".17g", ".17e", ".20f"]))
def test_a_printed_double_is_read_back_unchanged(value: float, style: str) -> None:
    text = repr(value) if style == "repr" else format(value, style)
    _, floats, _, _, bad = parse(text.encode())
    assert not bad
    assert bits(floats[0]) == bits(float(text))


@seed(20261123)
@settings(max_examples=500, deadline=None)
@given(st.integers(2**52, 2**53 - 1), st.integers(-40, 20))
def test_decimals_next_to_a_tie_are_rounded_like_python(mantissa: int, shift: int) -> None:
    # Halfway between two doubles, cut to 18 digits: the double-double must notice that it cannot tell.
    tie = Fraction(2 * mantissa + 1, 2) * Fraction(2) ** shift
    text = f"{int(tie * 10**17 / 10 ** len(str(int(tie)))):d}e{len(str(int(tie))) - 17}"
    _, floats, _, _, bad = parse(text.encode())
    assert not bad
    assert bits(floats[0]) == bits(float(text))


whole_numbers = st.one_of(st.integers(0, 10**4), st.integers(0, 10**25), st.integers(2**53 - 3, 2**53 + 3))


@seed(20261127)
@settings(max_examples=2000, deadline=None)
@given(st.sampled_from(["", "-", "+"]), whole_numbers, whole_numbers, st.integers(0, 3))
@example("", 9007199254740993, 1, 0)
@example("-", 1, 3, 0)
@example("", 10**400, 3, 0)
@example("", 3, 10**400, 0)
@example("", 10**639, 10**639 - 1, 0)
def test_a_fraction_is_the_double_nearest_to_the_quotient(sign: str, over: int, under: int, zeros: int) -> None:
    text = f"{sign}{'0' * zeros}{over}/{'0' * zeros}{under}"
    _, floats, _, _, bad = parse(text.encode())
    assert bad == (under == 0)
    assert (number_error(text, Field("p", False)) is None) == (not bad and not np.isinf(floats).any())
    if not bad:
        try:
            due = float(Fraction(int(sign + str(over)), under))
        except OverflowError:
            due = float(sign + "inf")
        assert floats[0] == due


@pytest.mark.parametrize(
    "text", ["1/", "/2", "1/0", "1/00", "1/2/3", "1//2", "1/-2", "1/+2", "0.5/2", "1/2.0", "1e1/2", "1/2e1", "1/x",
             "1/ 2", "-/2", "1/2x", ".5/2", "5./2", f"{'1' * 641}/2", f"1/{'1' * 641}"],
)  # fmt: skip
def test_what_is_not_a_fraction_of_two_integers_is_refused_by_kernel_and_message(text: str) -> None:
    assert parse(text.encode())[4]
    field = text.split()[0]
    assert number_error(field, Field("p", False)) is not None


@pytest.mark.parametrize("length", [40_000, 1_000_000])
@pytest.mark.parametrize("text", ["{}x", "0.{}x", "{}.{}x", "1e{}x", "{}.e{}x", "{}/{}x", "{},{}", "-{}e", "[{}", "{}"])
def test_the_message_for_a_long_number_takes_linear_time(text: str, length: int) -> None:
    digits = "7" * (length // text.count("{}"))
    for field in (Field("p", False), Field("s", True)):
        error = number_error(text.format(digits, digits), field)
        assert error is not None
        assert len(error) < 300


@seed(20261128)
@settings(max_examples=1000, deadline=None)
@given(st.text("0123456789.eE+-/x,", max_size=12))
def test_kernel_and_message_agree_on_what_a_number_is(text: str) -> None:
    _, floats, _, _, bad = parse(text.encode())
    read = not bad and floats.size > 0 and not np.isinf(floats[0])
    assert read == (number_error(text, Field("p", False)) is None)


def test_printed_probabilities_do_not_need_the_slow_way() -> None:
    rng = np.random.default_rng(5)
    slow = 0
    for value in rng.random(2000).tolist():
        slow += parse(repr(value).encode())[3]
    assert slow == 0


def test_powers_of_ten_are_exact_pairs() -> None:
    for k, (high, low) in enumerate(zip(numbers._HIGH.tolist(), numbers._LOW.tolist(), strict=True)):
        assert int(high) + int(low) == 10**k


@pytest.mark.parametrize(
    "text",
    [
        "nan", "NaN", "inf", "-inf", "Infinity", "0x1", "0x1p3", "1_0", "0,5", "0.5abc", "1e", "1e+", ".",
        "-", "+", "", "--1", "1.2.3", "\u0660.5", "1\x00", "1 2", "1e5.0", "0.5\x0b",
    ],
)  # fmt: skip
def test_what_is_not_a_plain_decimal_is_refused(text: str) -> None:
    _, floats, _, _, bad = parse(text.encode())
    assert bad or (text == "" and floats.size == 0)


@pytest.mark.parametrize(
    "text", ["1.0", "0x1", "+1", "1_0", "-", "9223372036854775808", "18446744073709551617", "\u0661", "1e3"]
)
def test_what_is_not_a_64_bit_integer_is_refused(text: str) -> None:
    assert parse(f"{text} 0.5".encode(), 1)[4]


@seed(20261124)
@settings(max_examples=300, deadline=None)
@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_64_bit_integer_is_read_exactly(number: int) -> None:
    ints, _, _, _, bad = parse(f"{number} 1".encode(), 1)
    assert not bad
    assert int(ints[0, 0]) == number


def test_blanks_comments_names_and_carriage_returns_are_no_numbers() -> None:
    ints, floats, offsets, _, bad = parse(b"# 7 7\n\n \t1 \t 0.5  stay\r\n  # x\n2 1\r", 1, word=True)
    assert not bad
    assert ints.tolist() == [[1, 2]]
    assert floats.tolist() == [0.5, 1.0]
    assert offsets.tolist() == [7, 30]


def test_a_malformed_line_is_where_the_parse_stops() -> None:
    ints, _, _, _, bad = parse(b"1 0.5\n2 x\n3 0.5", 1)
    assert bad
    assert ints.tolist() == [[1]]


def test_more_slow_decimals_than_slots_are_read_in_rounds() -> None:
    count = numbers.SLOW_SLOTS + 5
    text = b"0.1234567890123456789012345\n" * count
    _, _, _, n_slow, bad = parse(text, capacity=count)
    assert not bad
    assert n_slow == numbers.SLOW_SLOTS


def test_a_new_state_is_found_by_its_id_or_by_its_letter() -> None:
    columns = np.frombuffer(b"3 0 1 1\n3 1 1 1\n# c\n4 0 1 1\n", np.uint8).copy()
    assert next_state(columns, columns.size, 0, -2) == (20, 4, 3)
    letters = np.frombuffer(b"D:0:1:1\n S : 12:0:1\n", np.uint8).copy()
    assert next_state(letters, letters.size, ord("S"), -2)[:2] == (8, 12)
    assert next_state(letters, 8, ord("S"), -2)[0] == -1


def test_lines_are_marked_by_number_without_blank_ones() -> None:
    buffer = np.frombuffer(b"a\n\n# c\nb\nc\n", np.uint8).copy()
    marks = np.zeros(8, np.int64)
    seen, n_marks, last = mark_lines(buffer, buffer.size, 0, 2, marks)
    assert (seen, n_marks, last) == (3, 2, 9)
    assert marks[:2].tolist() == [0, 9]
