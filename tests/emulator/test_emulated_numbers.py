"""Numbers of emulated kernels: bits, directed rounding, and whole sweeps against the plain equations."""

from __future__ import annotations

import shutil
import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from emulated_cuda import compile_kernels, fenced
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_kernel import FIRST, N_OWN, N_STATES, ROW_SUM, TABLES, Plain, random_table

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.sources import SIMPLE, read_sources
from ooc_mdp.model.mdp import discounts
from ooc_mdp.model.partition import PartitionTable

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler"
)


NUMBERS = """
extern "C" __global__ void bits(const unsigned* x, unsigned* out, unsigned long long* wide) {
    unsigned a = x[0], b = x[1], by = x[2];
    unsigned long long both = (unsigned long long)b << 32 | a;
    out[0] = __popc(a); out[1] = __popcll(both); out[2] = __ffs(a); out[3] = __ffsll(both); out[4] = __clz(a);
    out[5] = __clzll(both); out[6] = __brev(a); out[7] = __byte_perm(a, b, by); out[8] = __funnelshift_l(a, b, by);
    out[9] = __funnelshift_r(a, b, by); out[10] = __umulhi(a, b); out[11] = __funnelshift_lc(a, b, by & 63);
    out[12] = __float_as_uint(__uint_as_float(a & 0x7f7fffffu)); out[13] = __mulhi((int)a, (int)b);
    wide[0] = __brevll(both); wide[1] = __umul64hi(both, both ^ by);
    wide[2] = __double_as_longlong(__longlong_as_double(both & 0x7fefffffffffffffull));
    wide[3] = __double_as_longlong(__hiloint2double(7, 9));
}
#define IN_ALL(name) out[k++] = name##_rd(a, b); out[k++] = name##_rn(a, b); out[k++] = name##_ru(a, b);
extern "C" __global__ void rounded(double a, double b, double* out, float* narrow, long long* whole) {
    int k = 0;
    IN_ALL(__dadd) IN_ALL(__dsub) IN_ALL(__dmul) IN_ALL(__ddiv)
    narrow[0] = __double2float_rd(a); narrow[1] = __double2float_rn(a); narrow[2] = __double2float_ru(a);
    whole[0] = __double2int_rn(a); whole[1] = __double2int_rz(a); whole[2] = __double2ll_rd(a);
    whole[3] = __double2uint_ru(a); whole[4] = min(max(a, -1.0), 1.0) == a;
}
"""
WORDS = st.integers(0, 2**32 - 1)


@settings(max_examples=200)
@given(a=WORDS, b=WORDS, by=WORDS)
def test_bits_are_counted_and_moved_as_in_cuda(a: int, b: int, by: int) -> None:
    module = compile_kernels(NUMBERS, ["bits", "rounded"])
    out, wide = np.zeros(14, np.uint32), np.zeros(4, np.uint64)
    module.launch("bits", 1, 1, [np.array([a, b, by], np.uint32), out, wide])
    both, word = b << 32 | a, 2**32 - 1
    eight = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
    picked = sum(eight[by >> 4 * i & 7] << 8 * i for i in range(4))
    signed = [x - 2**32 if x >> 31 else x for x in (a, b)]
    assert out.tolist() == [
        a.bit_count(),
        both.bit_count(),
        (a & -a).bit_length(),
        (both & -both).bit_length(),
        32 - a.bit_length(),
        64 - both.bit_length(),
        int(f"{a:032b}"[::-1], 2),
        picked,
        (both << by % 32) >> 32 & word,
        both >> by % 32 & word,
        a * b >> 32,
        (both << min(by % 64, 32)) >> 32 & word,
        a & 0x7F7FFFFF,
        signed[0] * signed[1] >> 32 & word,
    ]
    assert wide.tolist() == [
        int(f"{both:064b}"[::-1], 2),
        both * (both ^ by) >> 64,
        both & 0x7FEFFFFFFFFFFFFF,
        7 << 32 | 9,
    ]


NORMAL = st.floats(-1e30, 1e30).filter(lambda x: abs(x) > 1e-30)


@settings(max_examples=200)
@given(a=NORMAL, b=NORMAL)
def test_directed_rounding_encloses_the_exact_result(a: float, b: float) -> None:
    out, narrow, whole = np.empty(12), np.empty(3, np.float32), np.empty(5, np.int64)
    module = compile_kernels(NUMBERS, ["bits", "rounded"])
    module.launch("rounded", 1, 1, [np.float64(a), np.float64(b), out, narrow, whole])
    x, y = Fraction(a), Fraction(b)
    for (low, nearest, high), exact in zip(out.reshape(4, 3).tolist(), [x + y, x - y, x * y, x / y], strict=True):
        assert Fraction(low) <= exact <= Fraction(high)
        assert nearest == float(exact)
        assert high in (low, np.nextafter(low, np.inf))
    assert float(narrow[0]) <= a <= float(narrow[2])
    assert narrow[1] == np.float32(a)
    assert narrow[2] in (narrow[0], np.nextafter(narrow[0], np.float32(np.inf)))

    def held(value: int, low: int, high: int) -> int:
        return min(max(value, low), high)

    limits = (-(2**31), 2**31 - 1)
    assert whole.tolist() == [
        held(round(a), *limits),
        held(int(a), *limits),
        held(int(np.floor(a)), -(2**63), 2**63 - 1),
        held(int(np.ceil(a)), 0, 2**32 - 1),
        int(-1 <= a <= 1),
    ]


SWEEP = read_sources(*SIMPLE, "simple/plain.cu")
TYPES = {"u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned", "f4": "float", "f8": "double"}


def number_of_encoded(encoded: np.uint64) -> float:
    """The double of an order-preserving encoding."""
    bits = int(encoded)
    return float(np.uint64(bits - (1 << 63) if bits >> 63 else (1 << 64) - 1 - bits).view(np.float64))


class Sweeps:
    """The simple kernels over one partition: gather, Jacobi sweeps, scatter, measure."""

    def __init__(self, table: PartitionTable, discount: float, sign: float, seed: int | None) -> None:
        index, real = (TYPES[a.dtype.str[1:]] for a in (table.successors, table.probabilities))
        names = ["gather", "sweep", "largest_change", "scatter", "measure"]
        self.module = compile_kernels(SWEEP, names, {"INDEX": index, "REAL": real})
        self.seed, self.n, self.size = seed, table.n_states, table.n_states + table.halo.size
        fields = [
            table.action_ptr,
            table.successor_ptr,
            table.successors,
            table.probabilities,
            table.rewards,
            discounts(discount, table.durations),
            table.terminal_rewards,
            table.halo,
            table.boundary,
        ]
        self.fields = [fenced(field) if field.size else None for field in fields]
        numbers = [("first", "i8"), ("n", "i8"), ("h", "i8"), ("actions", "i8"), ("width", "i8")]
        self.table = np.zeros(1, [("pointers", "u8", 9), *numbers, ("discount", "f8"), ("sign", "f8")])
        self.table["pointers"] = [0 if field is None else field.ctypes.data for field in self.fields]
        self.table["first"], self.table["n"], self.table["h"] = table.first_state, table.n_states, table.halo.size
        self.table["actions"], self.table["width"] = table.actions_per_state, table.successors_per_action
        self.table["discount"], self.table["sign"] = discount, sign

    def launch(self, name: str, threads: int, *arguments: Any) -> None:
        self.module.launch(name, -(-threads // 32), 32, [self.table, *arguments], seed=self.seed)

    def visit(self, values: np.ndarray, policy: np.ndarray, sweeps: int) -> tuple[np.ndarray, np.ndarray]:
        """Changes of the last sweep and the report's first two numbers; updates values and policy."""
        now, other = fenced(np.full(self.size, np.nan)), fenced(np.full(self.size, np.nan))
        self.launch("gather", self.size, values, now, other)
        change, changes = fenced(np.full(self.n, np.nan)), np.zeros(2, np.uint64)
        for _ in range(sweeps):
            self.launch("sweep", self.n, now, other, policy, change, None)
            now, other = other, now
        self.launch("largest_change", self.n, change, changes)
        report = np.zeros(5, np.uint64)
        self.launch("scatter", self.n, now, values, report)
        return changes.view(np.float64), report[:2].view(np.float64)


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("shape", TABLES)
@pytest.mark.parametrize(("index", "real"), [("u1", "f8"), ("u2", "f4"), ("u4", "f8")])
def test_the_sweep_kernels_equal_the_plain_equations(index: str, real: str, shape: str, seed: int | None) -> None:
    table = random_table(1, index, real, **TABLES[shape])
    plain, emulated = Plain(table, 0.9, -1.0), Sweeps(table, 0.9, -1.0, seed)
    values, policy = np.random.default_rng(99).normal(size=N_STATES) * 100, np.full(N_STATES, -1, np.int32)
    for sweeps in (1, 4):
        own, own_policy = values.copy(), policy.copy()
        changes, boundary = emulated.visit(own, own_policy, sweeps)
        report = plain.visit(values, policy, SweepLimits(-1.0, sweeps), jacobi=True)
        np.testing.assert_array_equal(own, values)
        np.testing.assert_array_equal(own_policy, policy)
        assert report.last_change is not None
        assert changes.tolist() == report.last_change[:, 0].tolist()
        assert boundary.tolist() == [report.boundary_rise[0], report.boundary_fall[0]]
    policy[FIRST + 1 :: 3] = -1  # where there is none the greedy action becomes it
    own_policy = policy.copy()
    local, other, results = np.empty(emulated.size), np.empty(emulated.size), np.zeros(5, np.uint64)
    emulated.launch("gather", emulated.size, values, local, other)
    emulated.launch("measure", N_OWN, local, own_policy, ROW_SUM, 0.0, results)
    measured, _ = plain.measure(values, policy, 0.0)
    np.testing.assert_allclose([number_of_encoded(result) for result in results[:4]], measured, rtol=1e-13)
    np.testing.assert_array_equal(own_policy, policy)
