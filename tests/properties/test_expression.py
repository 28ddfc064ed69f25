"""Expressions over labels hold in the states that logic says, and what is none is refused where it goes wrong."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.errors import OptionsError
from ooc_mdp.properties.expression import states_where

ROWS = list(itertools.product([False, True], repeat=3))
LABELS = {name: np.array([row[i] for row in ROWS]) for i, name in enumerate(["a", "b", "two words"])}


def where(text: str) -> list[bool]:
    return states_where(text, LABELS.__getitem__, len(ROWS)).tolist()


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
        ("", "a label is expected, but it ends"),
        ("a &", "a label is expected after 'a &', but it ends"),
        ("a b", r"& or \| or the end is expected after 'a', but 'b' follows"),
        ("(a", r"a closing parenthesis is expected after '\(a', but it ends"),
        ("a)", r"& or \| or the end is expected after 'a', but '\)' follows"),
        ("x=3", "but '=3' follows"),
        ('"a', "a label is expected, but '\"a' follows"),
        ("!" * 500 + "a", "nested deeper than 200"),
    ],
)
def test_what_is_no_expression_is_refused_where_it_goes_wrong(text: str, message: str):
    with pytest.raises(OptionsError, match=message):
        states_where(text, lambda name: LABELS.get(name, LABELS["a"]), len(ROWS))
