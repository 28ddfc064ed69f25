"""Text that a reader would have left out of the model: it is refused, with its line."""

from __future__ import annotations

import pytest
from format_checks import SIZES, read, refusal

from ooc_mdp.io.johannsson.xml import JOHANNSSON_XML
from ooc_mdp.io.prism.transitions import PRISM
from ooc_mdp.io.storm.drn import DRN
from ooc_mdp.io.transition_list import TRANSITION_LIST

XML = """<MDP domain="d" author="a">
<States>
<State id="0"><AvailableActions>
<Action id="0"><ResultingState id="0" probability="1" actionReward="8"/></Action>
</AvailableActions></State>
</States>
</MDP>
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('author="a"', 'discount="0.5"', 1, "<MDP> has the attributes domain, discount; it may have domain and author"),
        ("<States>", '<States discount="0.5">', 2, "<States> has an attribute 'discount'; it has none only"),
        ("<AvailableActions>", '<AvailableActions reward="1">', 3, "<AvailableActions> has an attribute 'reward'"),
    ],
)
def test_attributes_that_johannssons_xml_does_not_define_are_refused(tmp_path, old, new, line, said):
    path = tmp_path / "m.xml"
    path.write_text(XML)
    assert read(JOHANNSSON_XML, path)["rewards"] == [8.0]
    path.write_text(XML.replace(old, new, 1))
    error = refusal(JOHANNSSON_XML, path)
    assert said in str(error)
    assert error.line == line


@pytest.mark.parametrize("name", ["go", "_x", "é", "a.b", '"go"', "<x>"])
def test_a_name_after_a_prism_transition_is_dropped(tmp_path, name):
    path = tmp_path / "m.tra"
    path.write_text(f"1 1 1\n0 0 0 1 {name}\n", encoding="utf-8")
    assert read(PRISM, path)["probabilities"] == [1.0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["0.5", "1", "-1", "+2", ".5", ",5", "/2", "[0.2,0.3]"])
def test_a_number_after_a_prism_transition_is_no_name(tmp_path, name, size):
    path = tmp_path / "m.tra"
    path.write_text(f"1 1 1\n0 0 0 1 {name}\n")
    error = refusal(PRISM, path, segment_bytes=size)
    assert error.line == 2
    assert name in str(error)


DRN_TEXT = (
    "@type: MDP\n@parameters\n\n@reward_models\n{names}\n@nr_states\n1\n@model\nstate 0 {list}\n\taction a\n\t\t0 : 1\n"
)


@pytest.mark.parametrize(
    ("names", "rewards", "wanted", "line", "said"),
    [
        ("r", "[1, 2]", "r", 9, "2 rewards; the lists of this model have 1"),
        ("r s", "[1]", "r", 9, "1 rewards; the lists of this model have 2"),
        ("r r", "[1, 2]", "r", 4, "there are several reward models 'r'"),
    ],
)
def test_lists_of_rewards_in_drn_have_one_for_each_reward_model(tmp_path, names, rewards, wanted, line, said):
    path = tmp_path / "m.drn"
    path.write_text(DRN_TEXT.format(names=names, list=rewards))
    error = refusal(DRN, path, reward_model=wanted)
    assert said in str(error)
    assert error.line == line


def test_a_drn_file_that_is_cut_after_the_line_of_an_action_is_refused_there(tmp_path):
    path = tmp_path / "m.drn"
    path.write_text(DRN_TEXT.format(names="", list="").removesuffix("\n\t\t0 : 1\n") + "\n\t\t0 : 1\n\taction b")
    error = refusal(DRN, path)
    assert "state 0, action 1: has no successors" in str(error)
    assert error.line == 12


def test_a_bad_line_of_rewards_after_the_last_state_is_refused_there(tmp_path):
    path, rewards = tmp_path / "m.txt", tmp_path / "m.rew"
    path.write_text("0 0 0 1\n")
    rewards.write_text("1\nx\n")
    error = refusal(TRANSITION_LIST, path, rewards=rewards)
    assert (error.path, error.line) == (str(rewards), 2)
