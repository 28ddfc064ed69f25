"""`solve --policy` on the command line: what is printed, recorded and verified, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return ooc_mdp.generate("queueing-network", tmp_path / "q.store", parameters={"capacity": 3}, partitions=4)


def test_a_policy_is_evaluated_and_its_value_is_named_as_such(tmp_path: Path, store: Store) -> None:
    path, result, npy = tmp_path / "q.store", tmp_path / "r", tmp_path / "p.npy"
    np.save(npy, np.zeros(store.n_states, np.int64))
    ran = ooc("solve", path, "--discount", 0.9, "--policy", npy, "--output", result)
    assert ran.status == 0
    digest = ooc_mdp.open_result(result).identity[EVALUATED]
    assert "|V - V_π| ≤" in ran.out
    assert f"value of the given policy π (SHA-256 {digest})" in ran.out
    assert "V*" not in ran.out
    assert "loses at most" not in ran.out
    inspected = ooc("inspect", result).out
    assert "--discount 0.9 --policy FILE" in inspected
    assert digest in inspected
    verified = ooc("verify", path, result)
    assert verified.status == 0
    assert "|V - V_π| ≤" in verified.out
    assert ooc("report", result, "-o", tmp_path / "r.html").status == 0
    page = (tmp_path / "r.html").read_text()
    assert "V_π is the value of the given policy" in page
    assert "V*" not in page


def test_the_policy_of_a_result_is_evaluated_by_another_criterion(tmp_path: Path, store: Store) -> None:
    path, result = tmp_path / "q.store", tmp_path / "best"
    assert ooc("solve", path, "--discount", 0.9, "--output", result).status == 0
    figures = ooc("solve", path, "--average", "--policy", result, "--json").figures
    best = ooc("solve", path, "--average", "--json").figures
    assert figures[EVALUATED] == ooc_mdp.policies.given.given_policy(result).digest
    assert figures["policy_loss_bound"] is None
    assert figures["gain_upper"] >= best["gain_lower"]
    assert EVALUATED not in best
    assert ooc("solve", path, "--horizon", 4, "--policy", result).status == 0


def test_a_resumed_evaluation_asks_for_its_policy(tmp_path: Path, store: Store) -> None:
    path, result, npy = tmp_path / "q.store", tmp_path / "r", tmp_path / "p.npy"
    np.save(npy, np.zeros(store.n_states, np.int64))
    asked = ("solve", path, "--discount", 0.9, "--output", result)
    assert ooc(*asked, "--policy", npy, "--time-limit", 1e-9).status == 1
    assert "--discount 0.9 --policy FILE" in ooc("inspect", tmp_path / "r.checkpoint").out
    assert "fingerprint" in refused(*asked, "--resume")
    assert ooc(*asked, "--policy", npy, "--resume").status == 0


def test_actions_that_a_state_does_not_have_are_refused(tmp_path: Path, store: Store) -> None:
    path, npy = tmp_path / "q.store", tmp_path / "p.npy"
    np.save(npy, np.full(store.n_states, 99))
    said = refused("solve", path, "--discount", 0.9, "--policy", npy)
    assert "takes action 99 in state 0, which has " in said
    assert "neither a result nor a .npy file" in refused("solve", path, "--discount", 0.9, "--policy", path)
