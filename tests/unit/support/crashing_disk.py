"""A disk that crashes at a chosen change."""

from kbroker.common import Buffer
from kbroker.runtime.real_disk import RealDisk, RealFile


class Crash(BaseException):
    pass


class CrashingDisk(RealDisk):
    """Raises Crash before the n-th change of the disk, or in the middle of it if it is a write."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1 << 60

    def step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        if create:
            self.step()
        file = super().open(path, create=create, write=write)
        disk = self

        class Crashing(RealFile):
            def append(self, data: Buffer, /) -> int:
                try:
                    disk.step()
                except Crash:
                    super().append(memoryview(data)[: len(data) // 2])
                    raise
                return super().append(data)

            def fdatasync(self) -> None:
                """Count as a change, without the sync: it is slow, and the power is never lost."""
                disk.step()

        crashing = Crashing(file._fd, file._file_system)
        file._fd = -1
        return crashing

    def sync_dir(self, path: str) -> None:
        pass

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        super().write_atomic(path, data, sync=False)

    def rename(self, old: str, new: str) -> None:
        self.step()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self.step()
        super().unlink(path)
