"""Johannsson's XML: rows, lines of errors, and hostile documents."""

from __future__ import annotations

import numpy as np
import pytest
from format_checks import OTHER, SIZES, peak_bytes, read, refusal

from ooc_mdp.io.johannsson.xml import JOHANNSSON_XML
from ooc_mdp.io.source import ReadOptions

XML = """<?xml version="1.0" encoding="utf-8"?>
<MDP domain="Corridor" author="nobody">
 <Description>Three states &amp; two ways</Description>
 <Actions><Action id="0" description="go"/><Action id="3" description="leap"/></Actions>
 <States>
  <State id="0">
   <AvailableActions>
    <Action id="0">
     <ResultingState id="1"
                     probability="0.75"
                     actionReward="8"/>
     <ResultingState id="0" probability="0.25" actionReward="4"/>
    </Action>
    <Action id="3"><ResultingState id="2" probability="1" actionReward="1.6e1"/></Action>
   </AvailableActions>
  </State>
  <State id="1"><AvailableActions><Action id="0">
   <ResultingState id="2" probability="1" actionReward="32"/></Action></AvailableActions></State>
  <State id="2"/>
 </States>
</MDP>
"""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
@pytest.mark.parametrize("size", SIZES)
def test_johannssons_xml_gives_its_states_actions_and_rewards(tmp_path, size, encoding):
    path = tmp_path / "m.xml"
    text = XML.replace("nobody", "Jóhannsson").replace('encoding="utf-8"', f'encoding="{encoding[:10]}"')
    path.write_bytes(text.replace('"utf-8-sig"', '"utf-8"').encode(encoding))
    assert JOHANNSSON_XML.detect(str(path), path.read_bytes())
    rows = read(JOHANNSSON_XML, path, segment_bytes=size)
    np.testing.assert_array_equal(rows["action_ptr"], [0, 2, 3, 3])
    np.testing.assert_array_equal(rows["successors"], [0, 1, 2, 2])
    np.testing.assert_array_equal(rows["probabilities"], [0.25, 0.75, 1, 1])
    np.testing.assert_array_equal(rows["rewards"], [7, 16, 32])


def test_xml_action_ids_are_kept_as_labels(tmp_path):
    path = tmp_path / "m.xml"
    path.write_text(XML)
    source = JOHANNSSON_XML.open(str(path), ReadOptions())
    assert source.n_states is None
    (block,) = [read() for read in source.blocks()]
    np.testing.assert_array_equal(block.rows.action_labels, [0, 3, 0])


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("MDP", "POMDPX", 2, "the root element is <POMDPX>"),
        ('<State id="2"/>', '<State id="3"/>', 19, "state 3 comes before state 2"),
        ('<State id="2"/>', '<State id="1"/>', 19, "state 1 is there already"),
        ('<State id="2"/>', "words", 19, "text 'words' inside <States>"),
        ('<State id="2"/>', '<State id="2" value="1"/>', 19, "an attribute 'value'"),
        ('<State id="2"/>', '<Action id="2"/>', 19, "<Action> inside <States>"),
        ('id="1"\n', 'id="7"\n', 9, "successor 7 does not exist: the 3 states are 0..2"),
        ('id="1"\n', 'id="-1"\n', 9, "successor -1 is negative"),
        ('id="1"\n', 'id="1.0"\n', 9, "not an integer"),
        ('id="1"\n', 'id="١"\n', 9, "not an integer"),
        ('id="1"\n', 'id="18446744073709551617"\n', 9, "does not fit into 64 bits"),
        ('"0.75"', '"0,75"', 9, "decimal comma"),
        ('"0.75"', '"0x1"', 9, "not a decimal number"),
        ('"0.75"', '"0_1"', 9, "not a decimal number"),
        ('"0.75"', '"nan"', 9, "is NaN"),
        ('"0.75"', '"1.75"', 9, "above 1"),
        ('"0.75"', '"0.5"', 8, "probabilities sum to 0.75"),
        ('"1.6e1"', '"-1e999"', 14, "overflows to infinity"),
        ('probability="1" actionReward="32"', 'probability="1"', 18, "without actionReward"),
        (
            '<Action id="3">',
            '<Action id="0">',
            14,
            "action 0: the state has an action of this number already; give each action once",
        ),
        ("</MDP>", "", 22, "not well-formed XML"),
        ("nobody", "&who;", 2, "not well-formed XML: undefined entity"),
        ("<MDP ", "<!DOCTYPE MDP>\n<MDP ", 2, "document type declaration"),
        ("<MDP ", '<!DOCTYPE MDP SYSTEM "/etc/passwd">\n<MDP ', 2, "refers to another file"),
        ("<MDP ", '<!DOCTYPE MDP [\n<!ENTITY who "x">]>\n<MDP ', 3, "declares an entity"),
        ("<MDP ", "<!DOCTYPE MDP [\n<!ATTLIST State id CDATA '0'>]>\n<MDP ", 2, "document type declaration"),
    ],
)
def test_xml_errors_are_named_with_their_line(tmp_path, old, new, line, said):
    assert old in XML
    path = tmp_path / "m.xml"
    path.write_text(XML.replace(old, new), encoding="utf-8")
    error = refusal(JOHANNSSON_XML, path)
    assert said in str(error)
    assert error.line == line


def test_a_tag_without_end_is_refused_in_bounded_memory(tmp_path):
    path = tmp_path / "m.xml"
    path.write_bytes(b'<MDP domain="' + b"a" * (24 << 20))

    def refused():
        assert "no tag in more than" in str(refusal(JOHANNSSON_XML, path))

    assert peak_bytes(refused) < 8 << 20


@pytest.mark.skipif(not OTHER.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize(("name", "line"), [("billion_laughs.pomdpx", 3), ("external_entity.pomdpx", 2)])
def test_entity_bombs_are_refused_at_the_declaration(name, line):
    error = refusal(JOHANNSSON_XML, OTHER / name)
    assert error.line == line
    assert "entity" in str(error)
