"""Shortages: failures of the system that pass by themselves, so that what failed may be tried again.

No room on the disk, no file descriptor, no memory. Any other failure means that the disk cannot be trusted.
"""

from errno import EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC

# No room: on the disk, in the user's quota, in the largest file that is allowed.
NO_ROOM = (ENOSPC, EDQUOT, EFBIG)
# The process, or the whole system, has as many files open as it may have.
NO_FILES = (EMFILE, ENFILE)


def is_shortage(error: OSError) -> bool:
    """Whether the operation failed for lack of room, file descriptors or memory.

    Not for syncs, for which `is_unbegun_sync` is: after a sync has failed, whatever the reason, nothing is known of the
    bytes that it was to write.
    """
    return error.errno in NO_ROOM or error.errno in NO_FILES or error.errno == ENOMEM


def is_unbegun_sync(error: OSError) -> bool:
    """Whether a sync failed before it began, because the file or directory could not be opened."""
    return error.errno in NO_FILES
