"""Parts of a segment that are read only when they are sent.

An answer that is read whole before its first byte leaves costs the client the time of that reading, and memory for as
long as the client takes. Of such a part nothing but its place and its size are known when the answer is made.
"""

from collections.abc import Callable
from errno import EIO

from kbroker.common import Buffer
from kbroker.runtime.disk import DiskFile


class FileSlice:
    """Whole batches in a file, which it keeps open. Its length is what has not been taken yet, in bytes.

    `failed` hears of an error before it is raised, perhaps in a thread.
    """

    __slots__ = ("_failed", "_file", "_left", "_position")

    def __init__(self, file: DiskFile, position: int, size: int, failed: Callable[[OSError], object]) -> None:
        self._file = file
        self._failed = failed
        self._position = position
        self._left = size

    def __len__(self) -> int:
        return self._left

    def take_nowait(self, limit: int) -> Buffer | None:
        """The next bytes, at most `limit`; None if they are not in memory. Raises OSError."""
        return self._take(self._file.pread_nowait, limit)

    def take_blocking(self, limit: int) -> Buffer:
        """The next bytes, at most `limit`. Raises OSError."""
        data = self._take(self._file.pread_reused, limit)
        assert data is not None
        return data

    def _take(self, read: Callable[[int, int], Buffer | None], limit: int) -> Buffer | None:
        try:
            data = read(min(limit, self._left), self._position)
            if data is not None and not data:
                raise OSError(EIO, "the file ends before what was to be read")
        except OSError as error:
            self._failed(error)
            raise
        if data is not None:
            self._position += len(data)
            self._left -= len(data)
        return data
