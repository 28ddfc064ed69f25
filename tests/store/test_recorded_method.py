"""What a checkpoint records of its method is what it stated, or a refusal that names the wrong fact."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from ooc_mdp.model.method_record import MethodRecord, Phase
from ooc_mdp.store.recorded_method import method_record_of
from ooc_mdp.store.sealed_file import SealError

RECORD = MethodRecord("p-eva", "exact-h1", 3, (Phase("p-eva", 0, 0), Phase("policy-iteration", 7, 900)))
PHASE = {"method": "vi", "loads": 0, "backups": 0}


@pytest.mark.parametrize("record", [MethodRecord(), RECORD], ids=["default", "phases"])
def test_a_record_is_read_as_it_was_written(record: MethodRecord) -> None:
    assert method_record_of(json.loads(json.dumps(asdict(record)))) == record


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"method": "simplex"}, "method: method is 'simplex', it must be auto or vi or p-eva or policy-iteration"),
        ({"method": None}, "method: method is None, it must be auto or "),
        ({"method": []}, "method: method is [], it must be auto or "),
        ({"priority": 3}, "method: priority is 3, it must be null or joint or "),
        ({"priority": {}}, "method: priority is {}, it must be null or joint or "),
        ({"sweeps_per_visit": 0}, "method: sweeps_per_visit is 0, it must be a whole number of at least 1"),
        ({"sweeps_per_visit": True}, "method: sweeps_per_visit is True, it must be a whole number"),
        ({"sweeps_per_visit": 1.0}, "method: sweeps_per_visit is 1.0, it must be a whole number"),
        ({"sweeps_per_visit": 10**30}, "method: sweeps_per_visit is 1000000000000000000000000000000, it must be "),
        ({"phases": {}}, "method: phases is {}, it must be a list"),
        ({"phases": [["vi", 0, 0]]}, "a phase of the method: \"['vi', 0, 0]\" is no object"),
        ({"phases": [PHASE | {"loads": -1}]}, "a phase of the method: loads is -1, it must be a whole number"),
        ({"phases": [PHASE | {"backups": 2**63}]}, "a phase of the method: backups is 9223372036854775808, it must be"),
        ({"phases": [PHASE, PHASE | {"method": ""}]}, "a phase of the method: method is '', it must be a word"),
        ({"phases": [{"method": "vi", "loads": 0}]}, "a phase of the method: missing: backups"),
        ({"phases": [PHASE | {"more": 1}]}, "a phase of the method: unknown: more"),
        ({"more": 1}, "method: unknown: more"),
    ],
    ids=str,
)
def test_a_wrong_fact_is_named_with_its_value_and_what_it_must_be(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(SealError) as refusal:
        method_record_of(asdict(RECORD) | {"phases": [PHASE]} | wrong)
    assert str(refusal.value).startswith(why)


def test_a_missing_fact_is_named() -> None:
    with pytest.raises(SealError, match=r"^method: missing: method, phases, priority, sweeps_per_visit$"):
        method_record_of({})
