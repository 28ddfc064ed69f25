"""What binds metadata and arrays together: one canonical form of JSON, and SHA-256 over it.

A sealed group's attributes contain `digest`, the SHA-256 of all the other attributes in canonical form. Opening the
group recomputes it, so a changed, missing or renamed attribute is found before anything trusts it. Knows no files
and no field names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DIGEST", "canonical", "digest_of", "hash_of", "holds_digest"]

DIGEST = "digest"
"""Name of the attribute that holds the digest of the others."""


def canonical(document: Any) -> bytes:
    """The only form of a JSON document that is hashed: sorted keys, no white space, no NaN or infinity.

    Raises
    ------
    ValueError : a number is not finite.
    """
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(attributes: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal, of all attributes except the digest itself."""
    rest = {name: value for name, value in attributes.items() if name != DIGEST}
    return hashlib.sha256(canonical(rest)).hexdigest()


def holds_digest(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes are those that were sealed: their digest is that of the others."""
    try:
        return bool(attributes.get(DIGEST) == digest_of(attributes))
    except (ValueError, RecursionError):  # a number that is not finite, or endless nesting: nothing that was sealed
        return False


def hash_of(title: str, document: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256, in hexadecimal, of a title, a JSON document, and arrays with their names, types and shapes."""
    digest = hashlib.sha256(f"{title}\0".encode())
    digest.update(canonical(document))
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<"))
        digest.update(canonical([name, values.dtype.str, list(values.shape)]))
        digest.update(values.tobytes())
    return digest.hexdigest()
