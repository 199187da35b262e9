"""The FileIO of archives: that of pyarrow, with local files that survive a power loss.

A commit names files that must exist afterwards. Without fsync, a catalogue could name files that are empty.
"""

import io
import os
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from kbroker.archive.storage import is_local, local_path
from kbroker.archive.storage.local import make_directory, sync_directory


class DurableFileIO(PyArrowFileIO):
    """Named by the property py-io-impl of the catalogues of archives."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return scheme, host and path. A local path may contain `#` and `?`, which pyarrow's FileIO cuts off."""
        if is_local(location):
            return "file", "", os.path.abspath(local_path(location))
        return PyArrowFileIO.parse_location(location, properties)

    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        return _DurableFile(location, file._path, file._filesystem) if is_local(location) else file


class _DurableFile(PyArrowFile):
    """A local file that is durable when it has been written."""

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and self.exists():
            raise FileExistsError(f"{self.location}: already exists")
        make_directory(os.path.dirname(self._path))
        return _SyncedWriter(self._path)


class _SyncedWriter(io.BufferedWriter):
    """Syncs the file and its name when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "w"))
        self._directory = os.path.dirname(path)

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            sync_directory(self._directory)
