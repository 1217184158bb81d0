"""Replacing a folder so that readers see the old one or the new one (R3). Nothing here knows what the folder holds."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -100
_LINUX_RENAME_EXCHANGE = 2
_MACOS_RENAME_SWAP = 2
_NOT_OFFERED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}

Step = Callable[[str], None]


def swap_folders(new: Path, current: Path, retired: Path, at_step: Step) -> None:
    """Put `new` in the place of `current`; what was current is afterwards deleted.

    One system call exchanges the two where the system offers that. Elsewhere `current` is first renamed to `retired`
    and `new` then takes its place; a kill between the two leaves no `current`, a whole `retired` and a whole `new`:
    readers take `retired` (`present_folder`) and the next writer finishes the step (`recover_swap`).
    """
    at_step("before_swap")
    if not current.exists():
        new.rename(current)
    elif _exchange(new, current):
        at_step("after_exchange")
        remove_folder(new)
    else:
        current.rename(retired)
        at_step("between_renames")
        new.rename(current)
        at_step("after_renames")
        remove_folder(retired)
    sync_folder(current.parent)
    at_step("after_swap")


def present_folder(current: Path, retired: Path) -> Path:
    """The folder that readers see now."""
    return retired if retired.exists() and not current.exists() else current


def recover_swap(new: Path, current: Path, retired: Path) -> None:
    """Finish or undo what a killed writer left. Afterwards only `current` exists, if anything ever did."""
    if not current.exists() and retired.exists():
        retired.rename(current)
    remove_folder(retired)
    remove_folder(new)


def remove_folder(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries and the files in it to the disk, so that a rename never outlives its content."""
    for path in [folder, *folder.iterdir()]:
        if path.is_symlink():
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system or its file system can't."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        ends = (os.fsencode(first), os.fsencode(second))
        if sys.platform == "darwin":
            result = library.renamex_np(*ends, _MACOS_RENAME_SWAP)
        else:
            result = library.renameat2(_AT_FDCWD, ends[0], _AT_FDCWD, ends[1], _LINUX_RENAME_EXCHANGE)
    except (AttributeError, TypeError, OSError):
        return False
    if result == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), str(first), None, str(second))
