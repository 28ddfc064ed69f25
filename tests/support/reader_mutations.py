"""Random alterations of a file's bytes, as damage, other programs and ill will make them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

__all__ = ["mutated"]

NUMBERS = [
    *(
        b"0",
        b"1",
        b"2",
        b"3",
        b"-1",
        b"-0",
        b"007",
        b"1.0",
        b"0.5",
        b".5",
        b"5.",
        b"1e3",
        b"1e-400",
        b"1e999",
        b"-1e999",
    ),
    *(b"nan", b"-inf", b"Infinity", b"0x10", b"1_0", b"0,5", b"1/2", b"1/0", b"1/", b"/2", b"1/2/3", b"-3/7"),
    *(
        str(value).encode()
        for value in (2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**12, 10**30)
    ),
    *(b"[0,1]", b"[", b"]", b"{3}", b"!2.5", b"*", b"9" * 400, b"9" * 5000, b"7" * 40_000 + b"x", b"1/" + b"3" * 700),
    *("\u0660".encode(), b"", b" ", b"1 2", b"a" * 5000, b"0" * 30, b"0." + b"3" * 30),
]
PIECES = [
    *(b"\0", b"\0" * 4096, b"\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\xed\xa0\x80"),
    *(b"\x1b[31m", b"\x1b]0;t\x07", b"\r\n", b"\n", b"\n" * 5000, b"\t", b"\x0c", b"\xc2\xa0", b'"', b"'", b"\\"),
    *(b"#", b"//", b"# Transitions (LTS)\n", b"(s)\n", b"@", b"@model\n", b"state ", b"\taction x\n", b"S:"),
    *(b"<a>" * 2000, b"<State id='9'>", b"</State>", b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"<![CDATA["),
    *(b"<!--", b"-->", b"{" * 5000, b"[" * 5000, b"(" * 200, b"x" * 100_000, b" " * 100_000, b"\x1f\x8b\x08"),
    *((value).to_bytes(8, "little") for value in (2**63 - 1, 2**63, 2**64 - 1, 10**12, 0x7FF8 << 48, 0xFFF0 << 48)),
]
_NUMBER = re.compile(rb"-?[0-9][0-9.]*")
_TOKEN = re.compile(rb"[^\s:,\"=<>]+")

Mutation = Callable[[bytes, random.Random], bytes]


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    """Flip a bit of one to four bytes."""
    altered = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        altered[rng.randrange(len(altered))] ^= 1 << rng.randrange(8)
    return bytes(altered)


def cut(data: bytes, rng: random.Random) -> bytes:
    """Keep the beginning or the end."""
    at = rng.randrange(len(data))
    return data[:at] if rng.random() < 0.8 else data[at:]


def copy_block(data: bytes, rng: random.Random) -> bytes:
    """Delete a block, or write it again, there or elsewhere, up to many times."""
    begin = rng.randrange(len(data))
    end = rng.randint(begin, min(len(data), begin + 64))
    at = rng.choice((begin, end, rng.randrange(len(data))))
    times = rng.choice((0, 1, 2, 300))
    if times == 0:
        return data[:begin] + data[end:]
    return data[:at] + data[begin:end] * times + data[at:]


def move_lines(data: bytes, rng: random.Random) -> bytes:
    """Delete, repeat or exchange lines."""
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(3)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(j, lines[i])
    else:
        lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


def replace_number(data: bytes, rng: random.Random) -> bytes:
    """Write another number, or what is none, in the place of one."""
    places = list(_NUMBER.finditer(data))
    if not places:
        return insert(data, rng)
    place = rng.choice(places)
    return data[: place.start()] + rng.choice(NUMBERS) + data[place.end() :]


def swap_tokens(data: bytes, rng: random.Random) -> bytes:
    """Write one token in the place of another."""
    places = list(_TOKEN.finditer(data))
    if not places:
        return insert(data, rng)
    place, other = rng.choice(places), rng.choice(places)
    return data[: place.start()] + other[0] + data[place.end() :]


def insert(data: bytes, rng: random.Random) -> bytes:
    """Insert a hostile piece, or overwrite with it."""
    at = rng.randint(0, len(data))
    piece = rng.choice(PIECES)
    return data[:at] + piece + data[at + rng.choice((0, len(piece))) :]


MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, cut, copy_block, move_lines, insert),
    *(replace_number, replace_number, replace_number, swap_tokens),
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The bytes after one to three alterations."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        data = rng.choice(MUTATIONS)(data, rng) if data else rng.choice(PIECES)
    return data
