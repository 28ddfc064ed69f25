"""Expressions over labels and variables hold where logic says; what is none is refused where it goes wrong."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import StateSet, Variable, VariableValues
from ooc_mdp.properties import expression
from ooc_mdp.properties.expression import check_expression, states_where

ROWS = list(itertools.product([False, True], repeat=3))
VALUES = {
    "x": np.arange(8) - 3,
    "y": np.arange(8) ** 2,
    "up": np.arange(8) % 2 == 1,
    "a": np.arange(8),
    "my var": np.arange(8),
    "speed": np.arange(8) / 4 - 0.5,
    "mode": np.arange(8) % 3,
}
TEXTS = ("idle", "busy", "a")


class Names:
    labels = ("a", "b", "two words")
    variables = {
        name: Variable("bool" if values.dtype == bool else "int", int(values.min()), int(values.max()))
        for name, values in VALUES.items()
    } | {
        "far": Variable("int", 0, 1 << 62),
        "speed": Variable("double", -0.5, 1.25),
        "mode": Variable("string", 0, 2, TEXTS),
    }

    def label(self, name: str) -> StateSet:
        return np.array([row[self.labels.index(name)] for row in ROWS])

    def values(self, name: str, first: int, end: int) -> VariableValues:
        return VALUES[name][first:end].astype(np.float64 if name == "speed" else np.int64)


def where(text: str) -> list[bool]:
    return states_where(text, Names(), len(ROWS)).tolist()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a", lambda a, b, c: a),
        ('"a"', lambda a, b, c: a),
        ('"two words"', lambda a, b, c: c),
        ("!a", lambda a, b, c: not a),
        ("!!a", lambda a, b, c: a),
        ("a & b", lambda a, b, c: a and b),
        ("a|b", lambda a, b, c: a or b),
        ('"a" & !"b"', lambda a, b, c: a and not b),
        ('a | b & "two words"', lambda a, b, c: a or (b and c)),
        ('(a | b) & "two words"', lambda a, b, c: (a or b) and c),
        ("!a & b", lambda a, b, c: not a and b),
        ("!(a & b)", lambda a, b, c: not (a and b)),
        ("true", lambda a, b, c: True),
        ("a & false", lambda a, b, c: False),
        ("  ( a )  ", lambda a, b, c: a),
    ],
)
def test_an_expression_holds_where_logic_says(text: str, meant: object):
    assert where(text) == [meant(*row) for row in ROWS]  # type: ignore[operator]


trees = st.recursive(
    st.sampled_from(["a", "b", '"two words"', "true", "false"]),
    lambda inner: st.one_of(
        inner.map(lambda x: f"!({x})"), st.tuples(inner, st.sampled_from("&|"), inner).map(lambda x: f"({' '.join(x)})")
    ),
)


@given(trees)
def test_expressions_in_parentheses_are_those_of_python(text: str):
    python = text.replace('"two words"', "c").replace("&", " and ").replace("|", " or ").replace("!", " not ")
    python = python.replace("true", "True").replace("false", "False")
    assert where(text) == [eval(python, {}, dict(zip("abc", row, strict=True))) for row in ROWS]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a label or a variable is expected, but it ends"),
        ("a &", "a label or a variable is expected after 'a &', but it ends"),
        ("a b", r"& or \| or the end is expected after 'a', but 'b' follows"),
        ("(a", r"a closing parenthesis is expected after '\(a', but it ends"),
        ("a)", r"& or \| or the end is expected after 'a', but '\)' follows"),
        ('"a', "a label or a variable is expected, but '\"a' follows"),
        ("!" * 500 + "a", "nested deeper than 100"),
        ("(" * 500 + "a", "nested deeper than 100"),
        ("-" * 500 + "1 = 1", "nested deeper than 100"),
        ("gaol", r"character 1: there is no label 'gaol'; there are: labels a, b, two words, and variables x, y, up"),
        ("a & z = 3", "character 5: there is no variable 'z'; there are: labels a, b"),
        ('a & "x"', "character 5: there is no label 'x'"),
        ("x", "'x' is a whole number; compare it, as in x = 3"),
        ("x + 1", "a comparison, such as x = 3, is expected after 'x \\+ 1'"),
        ("3", "a comparison, such as x = 3, is expected"),
        ("(a & b) = 1", "a comparison of numbers, not of sets of states, is expected"),
        ("x == 3", "a label or a variable is expected after 'x =', but '= 3' follows"),
        ("x < y < 3", r"& or \| or the end is expected after 'x < y', but '< 3' follows"),
        ("x = 1234567890123456789", "a number of at most 18 digits"),
        ("speed", "'speed' is a number; compare it, as in speed = 0.5"),
        ("speed + 1 > 0", "decimal numbers are combined by \\+, which would be rounded; compare each alone"),
        ("far > 0.5", r"whole numbers from 0 to \d+ are compared with decimal ones, which are exact up to 2\^53"),
        ("mode", "'mode' is a text; compare it, as in mode = \"idle\""),
        ("mode = 1", "'mode' is a text; compare it with = or != and a text in double quotes"),
        ('mode < "idle"', "'mode' is a text; compare it with = or != and a text in double quotes"),
        ('mode = "idel"', "character 8: 'mode' is never 'idel'; there are: 'idle', 'busy', 'a'"),
        ("x = 1e400", "a number of at most 18 digits"),
        ("far * 4 > 0", "numbers from 0 to 18446744073709551616 are possible, which do not fit in int64"),
    ],
)
def test_what_is_no_expression_is_refused_where_it_goes_wrong(text: str, message: str):
    with pytest.raises(OptionsError, match=message):
        where(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("x = 0", lambda s, x, y, up: x == 0),
        ("x=-3", lambda s, x, y, up: x == -3),
        ("x != 2 & y<=9", lambda s, x, y, up: x != 2 and y <= 9),
        ("!x>1 | y >= 49", lambda s, x, y, up: not x > 1 or y >= 49),
        ("!(x < 1)", lambda s, x, y, up: not x < 1),
        ("2 < x", lambda s, x, y, up: x > 2),
        ("x < y - 10", lambda s, x, y, up: x < y - 10),
        ("2*x + 1 = -(x - 4)", lambda s, x, y, up: 2 * x + 1 == -(x - 4)),
        ("y - x * 2 - 1 > (x + 1) * 3", lambda s, x, y, up: y - x * 2 - 1 > (x + 1) * 3),
        ("up", lambda s, x, y, up: up),
        ("!up & x>0", lambda s, x, y, up: not up and x > 0),
        ("up = true", lambda s, x, y, up: up),
        ("up=false|x=0", lambda s, x, y, up: not up or x == 0),
        ("a = 5", lambda s, x, y, up: s == 5),
        ('"my var" >= 6', lambda s, x, y, up: s >= 6),
        ("1 = 1", lambda s, x, y, up: True),
        ("speed >= 0.25", lambda s, x, y, up: s >= 3),
        ("speed = -5e-1 | speed>1", lambda s, x, y, up: s == 0 or s > 6),
        ("speed = x", lambda s, x, y, up: s / 4 - 0.5 == x),
        ("2.5 > x & -speed < 0", lambda s, x, y, up: x < 2.5 and s > 2),
        ('mode = "idle"', lambda s, x, y, up: s % 3 == 0),
        ('"a" != mode & up', lambda s, x, y, up: s % 3 != 2 and up),
    ],
)
@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_comparisons_hold_where_the_values_say(text: str, meant: object, piece: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expression, "_PIECE", piece)
    rows = zip(VALUES["x"], VALUES["y"], VALUES["up"], strict=True)
    assert where(text) == [meant(s, *row) for s, row in enumerate(rows)]  # type: ignore[operator]
    check_expression("goal", text)


def test_what_is_no_expression_is_refused_before_there_is_a_model():
    for text in ("x = ", "a b", "(x = 3"):
        with pytest.raises(OptionsError, match="is expected"):
            check_expression("goal", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Pmax=? [F done]", "--goal done --sense max"),
        (' P=?[ F<=3 "all done" & !(x=1) ] ', "--goal '\"all done\" & !(x=1)' --within 3"),
        ('R{"steps"}min=? [F done]', "--reward steps --goal done --sense min"),
        ("Rmax = ? [ F done ]", "--reward table --goal done --sense max"),
    ],
)
def test_a_property_of_prism_is_refused_with_the_options_that_ask_for_it(text: str, words: str):
    with pytest.raises(OptionsError, match=re.escape(f"only states are named here; write {words}") + "$"):
        check_expression("goal", text)
