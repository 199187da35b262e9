"""Shortages: temporary failures of the system, after which an operation may be retried.

A shortage is a lack of disk space, file descriptors or memory. Any other failure means that the disk cannot be trusted.
"""

from errno import EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC

# No space: on the disk, in the user's quota, or below the maximum file size.
NO_SPACE = (ENOSPC, EDQUOT, EFBIG)
# The process, or the whole system, has the maximum number of open files.
NO_DESCRIPTORS = (EMFILE, ENFILE)


def is_shortage(error: OSError) -> bool:
    """Return whether the operation failed for lack of disk space, file descriptors or memory.

    Not for syncs (see `is_unbegun_sync`): after a sync has failed for any reason, the state of the unsynced bytes is
    unknown.
    """
    return error.errno in NO_SPACE or error.errno in NO_DESCRIPTORS or error.errno == ENOMEM


def is_unbegun_sync(error: OSError) -> bool:
    """Return whether a sync failed before it began, because the file or directory could not be opened."""
    return error.errno in NO_DESCRIPTORS
