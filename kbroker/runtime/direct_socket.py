"""The socket of a connection. Files are sent to it directly, bypassing the write buffer of its transport."""

from typing import Protocol

from kbroker.common import Buffer


class DirectSocket(Protocol):
    """It may be used while the transport is open and its write buffer is empty. It does not block."""

    def fileno(self) -> int: ...

    def send(self, data: Buffer, flags: int, /) -> int:
        """Send bytes, and return how many were sent. `flags`: 0 or MSG_MORE.

        Raises BlockingIOError if the socket's buffer is full.
        """
        ...
