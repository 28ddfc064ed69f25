"""What a user can do about files that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ooc_mdp.errors import system_remedy

__all__ = ["BROKEN_DISK", "NO_PERMISSION", "NO_SPACE", "advice", "why_not_written"]

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
    return system_remedy(error) or "mend that"


def why_not_written(error: OSError, store: Path, partial: Path) -> str | None:
    """What to tell the user where writing the store failed; None where the error is about something else."""
    if error.errno is None:
        return None
    reason = os.strerror(error.errno)
    if error.errno in NO_SPACE:
        return f"{store} was not written: no room ({reason}); free space or choose another disk"
    if error.errno in BROKEN_DISK and error.filename is None:  # of a write, or of a read of what it is made from
        return f"{store} was not written: {reason}; look at the disks that are read and written, or choose others"
    name = str(error.filename)
    if name not in (str(store.parent), str(store), str(partial)) and not name.startswith(f"{partial}{os.sep}"):
        return None
    if error.errno in NO_PERMISSION:
        return f"{store} was not written: {reason}: {name}; check the directory's permissions"
    if error.errno in BROKEN_DISK:
        return f"{store} was not written: {reason}: {name}; look at the disk, or choose another"
    return None
