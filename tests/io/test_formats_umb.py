"""UMB archives: their defaults, rewards and number types, and what is refused of them."""

from __future__ import annotations

import gzip
import json
import tarfile
from fractions import Fraction

import numpy as np
import pytest
from format_checks import SIZES, peak_bytes, read, refusal, same
from paths import PUBLIC
from umb_files import UMB_FILES, f8, u8, umb_file, umb_index

from ooc_mdp.io.umb.reader import UMB


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("suffix", [".umb", ".gz", ".xz"])
def test_umb_rewards_of_states_and_choices_add_up(tmp_path, suffix, size):
    rows = read(UMB, umb_file(tmp_path / f"m{suffix}", umb_index()), reward_model="cost", segment_bytes=size)
    np.testing.assert_array_equal(rows["action_ptr"], [0, 2, 3, 3])
    np.testing.assert_array_equal(rows["successor_ptr"], [0, 2, 3, 4])
    np.testing.assert_array_equal(rows["successors"], [0, 1, 2, 2])
    np.testing.assert_array_equal(rows["probabilities"], [0.25, 0.75, 1, 1])
    np.testing.assert_array_equal(rows["rewards"], [1.5, 1.25, 10])
    np.testing.assert_array_equal(rows["terminal_rewards"], [0, 0, 100])


WITHOUT_REWARDS = dict.fromkeys(name for name in UMB_FILES if name.startswith("annotations/rewards/"))


def test_umb_rewards_are_chosen_by_id_or_alias(tmp_path):
    path = umb_file(tmp_path / "m.umb", umb_index())
    np.testing.assert_array_equal(read(UMB, path, reward_model="r1")["rewards"], [7, 16, 32])
    np.testing.assert_array_equal(read(UMB, path, reward_model="r0")["rewards"], [1.5, 1.25, 10])
    np.testing.assert_array_equal(read(UMB, path)["rewards"], [0, 0, 0])  # of several, none is the table's
    assert "no reward structure 'x'; there are: r0 (cost), r1" in str(refusal(UMB, path, reward_model="x"))


def test_umb_members_may_come_in_any_order_and_index_json_last(tmp_path):
    for suffix in (".umb", ".gz"):
        path = tmp_path / f"m{suffix}"
        umb_file(path, umb_index(), {"index.json": None, "./index.json": json.dumps(umb_index()).encode()})
        np.testing.assert_array_equal(read(UMB, path, reward_model="r1")["rewards"], [7, 16, 32])


def test_umb_files_left_out_mean_one_choice_a_state_and_one_branch_a_choice(tmp_path):
    index = umb_index(n_players=0, n_choices=3, n_branches=3, branch_probability_type=None)
    index["annotations"] = {"rewards": {"r": {"applies-to": ["choices"], "type": {"type": "double"}}}}
    files = dict.fromkeys(UMB_FILES) | {
        "branch-to-target.bin": u8(1, 2, 0),
        "annotations/rewards/r/choices/values.bin": f8(1, 2, 3),
    }
    rows = read(UMB, umb_file(tmp_path / "m.umb", index, files), segment_bytes=1)
    np.testing.assert_array_equal(rows["action_ptr"], [0, 1, 2, 3])
    np.testing.assert_array_equal(rows["successors"], [1, 2, 0])
    np.testing.assert_array_equal(rows["probabilities"], [1, 1, 1])


def test_umb_rationals_become_the_nearest_doubles(tmp_path):
    third = [Fraction(1, 3), Fraction(2, 3), Fraction(1), Fraction(1)]
    wide = [Fraction(2**70, 3 * 2**70 + 1), Fraction(2**71 + 1, 3 * 2**70 + 1), Fraction(1), Fraction(1)]
    for bits, values in ((128, third), (256, wide)):
        half = bits // 16
        data = b"".join(
            v.numerator.to_bytes(half, "little", signed=True) + v.denominator.to_bytes(half, "little") for v in values
        )
        index = umb_index(branch_probability_type={"type": "rational", "size": bits})
        path = umb_file(tmp_path / "m.umb", index, {"branch-to-probability.bin": data})
        rows = read(UMB, path, reward_model="r1")
        np.testing.assert_array_equal(rows["probabilities"], [float(v) for v in values])


def test_a_umb_model_without_rewards_has_rewards_of_0(tmp_path):
    path = umb_file(tmp_path / "m.umb", umb_index(rewards={}), WITHOUT_REWARDS)
    np.testing.assert_array_equal(read(UMB, path)["rewards"], [0, 0, 0])


@pytest.mark.parametrize(
    ("index", "files", "said"),
    [
        (umb_index(time="stochastic"), {}, "time is 'stochastic'"),
        (umb_index(time="urgent-stochastic"), {}, "only discrete-time models"),
        (umb_index(n_players=2), {}, "a game of 2 players"),
        (umb_index(n_observations=4), {}, "partially observed"),
        (umb_index(branch_probability_type={"type": "double-interval"}), {}, "intervals (double-interval)"),
        (
            umb_index(branch_probability_type={"type": "uint", "size": 64}),
            {},
            "doubles and rationals are read",
        ),
        (umb_index(n_states=-1), {}, "'#states' is -1"),
        (umb_index(n_states=True), {}, "'#states' is True"),
        (umb_index(n_choices=1 << 70), {}, "'#choices' is"),
        (
            umb_index(n_states=1 << 60),
            {},
            "state-to-choices.bin has 32 bytes; the counts of index.json ask for",
        ),
        (umb_index(n_branches=10**18), {}, "branch-to-target.bin has 32 bytes"),
        (umb_index(n_players=0), {}, "state 0 has 2 choices, but index.json says 0 players"),
        (umb_index(top_format_version=7), {}, "format-version is 7"),
        (umb_index(), {"index.json": b"{"}, "cannot be read as JSON"),
        (umb_index(), {"index.json": b"[" * 100_000}, "cannot be read as JSON"),
        (umb_index(), {"index.json": b"[]"}, "must be a JSON object"),
        (umb_index(), {"index.json": None}, "index.json is missing"),
        (umb_index(), {"branch-to-probability.bin": None}, "branch-to-probability.bin is missing"),
        (
            umb_index(n_choices=4, n_states=9),
            {"state-to-choices.bin": None, "choice-to-branches.bin": u8(0, 1, 2, 3, 4), **WITHOUT_REWARDS},
            "but there are 4 choices and 9",
        ),
        (umb_index(), {"state-to-choices.bin": u8(0, 3, 2, 3)}, "state-to-choices.bin: falls from 3 to 2"),
        (umb_index(), {"choice-to-branches.bin": u8(0, 2, 3, 2**63)}, "9223372036854775808 does not fit"),
        (umb_index(), {"branch-to-target.bin": u8(0, 1, 2, 3)}, "successor 3 does not exist"),
        (umb_index(), {"branch-to-probability.bin": f8(0.25, 0.5, 1, 1)}, "probabilities sum to 0.75"),
        (umb_index(), {"../up.bin": b"x"}, "'../up.bin' points outside"),
        (umb_index(), {"/abs.bin": b"x"}, "'/abs.bin' points outside"),
    ],
)
@pytest.mark.parametrize("suffix", [".umb", ".gz"])
def test_umb_models_out_of_scope_or_out_of_shape_are_refused(tmp_path, index, files, said, suffix):
    path = umb_file(tmp_path / f"m{suffix}", index, files)
    assert said in str(refusal(UMB, path, reward_model=None if "no rewards" in said else "r1"))


@pytest.mark.parametrize("suffix", [".umb", ".gz"])
def test_umb_targets_and_rewards_that_are_absent_are_zero(tmp_path, suffix):
    absent = {"branch-to-target.bin": None, "annotations/rewards/r0/states/values.bin": None}
    path = umb_file(tmp_path / f"m{suffix}", umb_index(), absent)
    rows = read(UMB, path, reward_model="cost", segment_bytes=1)
    np.testing.assert_array_equal(rows["successors"], [0, 0, 0])
    np.testing.assert_array_equal(rows["probabilities"], [1, 1, 1])
    np.testing.assert_array_equal(rows["rewards"], [0.5, 0.25, 0])
    np.testing.assert_array_equal(rows["terminal_rewards"], [0, 0, 0])
    path = umb_file(tmp_path / f"n{suffix}", umb_index(), {"annotations/rewards/r1/branches/values.bin": None})
    np.testing.assert_array_equal(read(UMB, path, reward_model="r1")["rewards"], [0, 0, 0])


def test_a_umb_model_of_which_every_state_belongs_to_the_one_player_is_read(tmp_path):
    path = umb_file(tmp_path / "m.umb", umb_index(), {"state-to-player.bin": bytes(12)})
    np.testing.assert_array_equal(read(UMB, path, reward_model="r1")["rewards"], [7, 16, 32])


REWARD = {"applies-to": ["choices"], "type": {"type": "double"}}


@pytest.mark.parametrize(
    ("index", "files", "said"),
    [
        (umb_index(), {"rewards.bin": b""}, "member 'rewards.bin' is none that index.json announces"),
        (umb_index(), {"Branch-To-Probability.bin": f8(1, 0, 1, 1)}, "member 'Branch-To-Probability.bin' is none"),
        (umb_index(), {"state-to-exit-rate.bin": f8(1, 1, 1)}, "member 'state-to-exit-rate.bin' is none"),
        (umb_index(), {"state-is-markovian.bin": u8(1)}, "member 'state-is-markovian.bin' is none"),
        (umb_index(), {"observations/states/values.bin": u8(0, 0, 0)}, "'observations/states/values.bin' is none"),
        (umb_index(), {"state-to-player.bin": b"\0\0\0\0\1\0\0\0\0\0\0\0"}, "gives states to a second player"),
        (umb_index(), {"state-to-player.bin": bytes(8)}, "state-to-player.bin has 8 bytes"),
        (
            umb_index(),
            {"annotations/rewards/r1/states/values.bin": f8(1, 2, 3)},
            "rewards/r1/states/values.bin' is none",
        ),
        (umb_index(), {"annotations/rewards/r1/branches/value.bin": f8(1)}, "rewards/r1/branches/value.bin' is none"),
        (
            umb_index(),
            {"annotations/rewards/r1/branches/probabilities.bin": b""},
            "branches/probabilities.bin' is none",
        ),
        (umb_index(), {"annotations/rewards/R1/branches/values.bin": b""}, "rewards/R1/branches/values.bin' is none"),
        (umb_index(), {"annotations/reward/r1/branches/values.bin": b""}, "reward/r1/branches/values.bin' is none"),
        (umb_index(branch_probability_type=None), {}, "member 'branch-to-probability.bin' is none"),
        (umb_index(branch_probability_typ={}), {}, "has the key 'branch-probability-typ', which is none of"),
        (umb_index(top_rewards={}), {}, "index.json has the key 'rewards', which is none of"),
        (umb_index(exit_rate_type={"type": "double"}), {}, "'exit-rate-type' does not apply"),
        (umb_index(n_observations=0.0), {}, "'#observations' is 0.0"),
        (umb_index(branch_probability_type={"type": "double", "size": 64.0}), {}, "doubles and rationals are read"),
        (umb_index(rewards={"r1": REWARD | {"discount": 0.5}}), {}, "has the key 'discount', which is none of"),
        (umb_index(rewards={"r1": REWARD | {"alias": 5}}), {}, "the alias of reward structure 'r1' is 5"),
        (umb_index(rewards={"a": REWARD | {"alias": "r1"}, "b": REWARD | {"alias": "r1"}}), {}, "are called 'r1'"),
        (umb_index(), {"index.json": b'{"a": 1, "a": 2}'}, "the key 'a' is given twice"),
    ],
)
def test_umb_members_and_keys_that_would_be_left_out_are_refused_by_name(tmp_path, index, files, said):
    assert said in str(refusal(UMB, umb_file(tmp_path / "m.umb", index, files), reward_model="r1"))


def test_umb_labels_valuations_and_action_names_are_left_out(tmp_path):
    index = umb_index()
    index["annotations"]["aps"] = {"goal": {"applies-to": ["states"], "type": {"type": "bool"}}}
    files = dict.fromkeys(
        ("annotations/aps/goal/states/values.bin", "valuations/states/valuations.bin", "actions/choices/values.bin"),
        b"",
    )
    rows = read(UMB, umb_file(tmp_path / "m.umb", index, files), reward_model="r1")
    np.testing.assert_array_equal(rows["rewards"], [7, 16, 32])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_umb_members_that_are_no_plain_files_are_refused(tmp_path, kind):
    path = umb_file(tmp_path / "m.umb", umb_index())
    with tarfile.open(path, "a") as archive:
        info = tarfile.TarInfo("valuations")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    assert "holds plain files only" in str(refusal(UMB, path, reward_model="r1"))


def test_umb_members_given_twice_are_refused(tmp_path):
    path = umb_file(tmp_path / "m.umb", umb_index(), {"./branch-to-target.bin": u8(0, 1, 2, 2)})
    assert "is there twice" in str(refusal(UMB, path, reward_model="r1"))


@pytest.mark.parametrize("suffix", [".umb", ".gz", ".xz"])
def test_a_umb_file_cut_short_is_refused(tmp_path, suffix):
    path = umb_file(tmp_path / f"m{suffix}", umb_index())
    whole = path.read_bytes()
    for part in (0.3, 0.6) if suffix != ".umb" else (0.1, 0.3):
        path.write_bytes(whole[: int(len(whole) * part)])
        refusal(UMB, path, reward_model="r1")


def test_a_huge_tar_header_is_refused_before_it_is_read(tmp_path):
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    path = tmp_path / "m.umb"
    path.write_bytes(gzip.compress(info.tobuf() + bytes(1 << 20)))
    assert peak_bytes(lambda: refusal(UMB, path)) < 4 << 20


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("size", SIZES)
def test_storms_umb_file_has_the_transitions_of_the_reference_case(size):
    folder = PUBLIC / "qvbs-consensus-2-2"
    rows = read(UMB, folder / "formats" / "model.umb", reward_model="steps", segment_bytes=size)
    with np.load(folder / "model.npz") as case:
        same(rows, case)
        of_rows = np.repeat(case["r_s"], np.diff(case["state_ptr"]))
    # Storm's file pays 1 in every state; the case's model pays nothing in the finished ones.
    np.testing.assert_array_equal(rows["rewards"], 1.0)
    assert set(np.unique(of_rows)) == {0.0, 1.0}
