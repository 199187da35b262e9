"""Parts of a segment file that are sent from the page cache to a socket, or are read when they are sent.

Reading a large response completely before its first byte is sent would delay the client, and occupy memory for as long
as the client takes to receive it. So a built response contains only the position and size of such a part.
"""

from collections.abc import Callable
from errno import EIO

from kbroker.common import Buffer
from kbroker.runtime.disk import DirectSocket, DiskFile

# A read of at least this many bytes may return a FileSlice. Measured: sendfile needs two more system calls, so below
# 100 KB it is not cheaper than copying.
BULK_BYTES = 1 << 17


class FileSlice:
    """Complete batches in a file, which the slice keeps open. Its length is the number of unread bytes.

    `on_error` is called with an error before it is raised, perhaps in a thread.
    """

    __slots__ = ("_file", "_on_error", "_position", "_remaining")

    def __init__(self, file: DiskFile, position: int, size: int, on_error: Callable[[OSError], object]) -> None:
        self._file = file
        self._on_error = on_error
        self._position = position
        self._remaining = size

    def __len__(self) -> int:
        return self._remaining

    def send_nowait(self, socket: DirectSocket, limit: int) -> int | None:
        """Send at most `limit` of the next bytes from the page cache to a socket. Returns as DiskFile.send_nowait."""
        sent = self._file.send_nowait(socket, min(limit, self._remaining), self._position)
        if sent:
            self._position += sent
            self._remaining -= sent
        return sent

    def read_nowait(self, limit: int) -> Buffer | None:
        """Read at most `limit` of the next bytes; None if they are not in memory. Raises OSError."""
        return self._read(self._file.pread_nowait, limit)

    def read_blocking(self, limit: int) -> Buffer:
        """Read at most `limit` of the next bytes. Raises OSError."""
        data = self._read(self._file.pread_reused, limit)
        assert data is not None
        return data

    def _read(self, read: Callable[[int, int], Buffer | None], limit: int) -> Buffer | None:
        try:
            data = read(min(limit, self._remaining), self._position)
            if data is not None and not data:
                raise OSError(EIO, "the file ends before the end of the slice")
        except OSError as error:
            self._on_error(error)
            raise
        if data is not None:
            self._position += len(data)
            self._remaining -= len(data)
        return data
