"""What a user can do about files that cannot be written."""

from __future__ import annotations

import errno

__all__ = ["BROKEN_DISK", "NO_PERMISSION", "NO_SPACE", "advice"]

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
BROKEN_DISK = (errno.EIO, errno.ESTALE)


def advice(error: OSError) -> str:
    """What is to be done there before the same is tried again, as the beginning of a clause."""
    if error.errno is None or error.errno in NO_SPACE:  # NumPy's short writes have no number
        return "make room"
    if error.errno in NO_PERMISSION:
        return "allow writing there"
    if error.errno in BROKEN_DISK:
        return "look at the disk"
    return "mend that"
