"""The criterion of a finite horizon: the best plan for a number of stages.

    V_t(s) = max E[ sum over u = t .. T-1 of g^(u-t) r_u  +  g^(T-t) final(s_T) ],      t = 0 .. T,  0 <= g <= 1

Stage t is the one with T - t stages to go: 0 is the first, and V_T are the final values. A state without actions is
valued at its terminal reward in every stage, the last included.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ooc_mdp.arguments import real_number, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, Flag, asked_choices, check_keywords, check_sense, given_parameters
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.quoting import quote
from ooc_mdp.store.given_values import given_values

__all__ = ["MAX_STAGES", "FiniteHorizon", "parse_stages"]

MAX_STAGES = 10**7
"""What is kept of each stage, apart from its policy, is in memory."""


@check_keywords(
    horizon="the number of stages is stages",
    goal="give Reachability(goal, within=stages) for the probability to reach a goal in so many steps",
)
@dataclass(frozen=True, slots=True, eq=False)
class FiniteHorizon:
    """The sum of rewards over a number of stages, and of the final values after them.

    Parameters
    ----------
    stages : T, at least 1.
    discount : of each stage, at least 0 and at most 1.
    final_values : the value of a state with actions after the last stage, in the source's order: an array, of the
        grid's shape or flat; a result, or what :func:`ooc_mdp.solve` returned, whose values are taken; or the path of
        a result or of a .npy file. 0 by default.
    kept_stages : stages from 0 to T whose values are kept. Those of the first stage always are.
    reward : name of the reward model; None for the table's own rewards.
    sense : "max" or "min"; None for the table's. Costs are minimised by ``FiniteHorizon(40, sense="min")``.
    """

    stages: int
    discount: float = 1.0
    final_values: FloatArray | None = None
    """float64 [n_states], read-only, once it is read."""
    kept_stages: tuple[int, ...] = ()
    reward: str | None = None
    sense: str | None = None
    digest: str | None = field(init=False, default=None)
    """SHA-256 of the final values; None where they are 0."""
    name: ClassVar[str] = "horizon"
    own_method: ClassVar[str | None] = "backward induction"
    on_devices: ClassVar[bool] = True
    from_values: ClassVar[bool] = False
    """Each stage is computed from the one after it alone."""
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("horizon", int, "Best plan for this number of stages, without a discount or with --discount.", "T"),
        Flag(
            "final_values",
            str,
            "With --horizon: value of each state after the last stage, a .npy file or a result.  [default: 0]",
            "FILE|RESULT",
        ),
        Flag("keep_stages", str, "With --horizon: stages whose values are kept, beside those of stage 0.", "0,10,..."),
    )
    borrowed: ClassVar[tuple[str, ...]] = ("discount", "reward", "sense")

    def __post_init__(self) -> None:
        stages = whole_number("stages", self.stages, "; give the number of stages as a whole number from 1 on")
        if not 1 <= stages <= MAX_STAGES:
            raise OptionsError(f"a horizon of {stages} stages: give a whole number from 1 to {MAX_STAGES}")
        discount = real_number("discount", self.discount)
        if not 0 <= discount <= 1:
            raise OptionsError(f"the discount of a stage must be at least 0 and at most 1, not {discount}")
        check_sense(self.sense)
        listed = self.kept_stages if isinstance(self.kept_stages, Iterable) else (self.kept_stages,)
        kept = sorted({whole_number("a kept stage", stage) for stage in listed})
        wrong = [stage for stage in kept if not 0 <= stage <= stages]
        if wrong:
            raise OptionsError(
                f"stage {wrong[0]} is none of a horizon of {stages} stages: keep stages from 0, the first, to "
                f"{stages}, the final values"
            )
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "discount", discount)
        object.__setattr__(self, "kept_stages", tuple(kept))
        if self.final_values is not None:
            values = _final_values(self.final_values)
            object.__setattr__(self, "final_values", values)
            object.__setattr__(self, "digest", hashlib.sha256(values.astype("<f8", copy=False).data).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FiniteHorizon) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return self.stages, self.discount, self.digest, self.kept_stages, self.reward, self.sense

    @property
    def parameters(self) -> dict[str, Any]:
        """Stages, the SHA-256 of the final values, which stages' values are kept, and what else is given."""
        return {
            "stages": self.stages,
            "final_values": self.digest,
            "kept_stages": ",".join(map(str, self.kept_stages)) or None,
            **given_parameters(reward=self.reward, asked_sense=self.sense),
        }

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """By --horizon; each other flag is a parameter."""
        others = {name: value for name, value in given.items() if name not in ("horizon", "keep_stages")}
        kept = parse_stages(given["keep_stages"], "--keep-stages") if "keep_stages" in given else ()
        return cls(given["horizon"], kept_stages=kept, **others)

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """How the command line asks for a recorded one."""
        parts = [f"--horizon {record['stages']}"]
        if record["discount"] != 1:
            parts.append(f"--discount {record['discount']}")
        if record["final_values"] is not None:
            parts.append("--final-values FILE")
        if record["kept_stages"]:
            parts.append(f"--keep-stages {record['kept_stages']}")
        return " ".join(parts) + asked_choices(record)


def parse_stages(text: str, option: str) -> tuple[int, ...]:
    """The stages in "0,10,50", each once; OptionsError where the text is no such list."""
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text, re.ASCII):
        raise OptionsError(f"{option} {quote(text)} is no list of stages; write for example {option} 0,10,50")
    return tuple(dict.fromkeys(int(stage) for stage in text.split(",")))


def _final_values(given: Any) -> FloatArray:
    """float64 [n], read-only and the criterion's own: of an array, of what has values, or of a file that has them."""
    found = given_values(given, "final values")
    values = found.values
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise OptionsError(f"{found.where}: that of state {wrong[0]} is {values[wrong[0]]}; give finite numbers")
    values.flags.writeable = False
    return values
