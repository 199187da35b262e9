"""What `kbroker doctor` asks of the machine and of a running broker. Nothing here writes or decides."""

import ctypes
import errno
import importlib.util
import os
import resource
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kbroker.cli.common.locks import is_locked

CONNECT_S = 2.0
_TIME_ERROR = 5
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(slots=True, frozen=True)
class Cluster:
    """What a broker that listens already says of itself."""

    cluster_id: str
    node_ids: tuple[int, ...]
    topics: int
    without_leader: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class FileSystem:
    """The file system of a path: its kind ("ext4"), where it is mounted, its device as `major:minor`."""

    kind: str
    mount_point: str
    device: str


class Machine:
    """This machine. Paths must exist unless it says otherwise; what cannot be told is None."""

    # Network.

    def bind_error(self, host: str, port: int) -> OSError | None:
        """Why a listener cannot be bound here; None if it can."""
        try:
            found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            with socket.socket(found[0][0], socket.SOCK_STREAM) as held:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                held.bind(found[0][4])
        except OSError as error:
            return error
        return None

    def resolve(self, host: str) -> list[str]:
        """The addresses of a host name. Raises OSError."""
        return sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})

    def connect_error(self, host: str, port: int) -> OSError | None:
        try:
            socket.create_connection((host, port), CONNECT_S).close()
        except OSError as error:
            return error
        return None

    def ask(self, host: str, port: int) -> Cluster | None:
        """The broker that listens there; None if what listens is none."""
        from kbroker.cli.common.client import admin_client
        from kbroker.cli.common.errors import CliError

        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            with admin_client(address) as client:
                cluster = client.describe_cluster()
                topics = client.describe_topics(None)
        except CliError:
            return None
        headless = [topic["name"] for topic in topics if any(part["leader_id"] < 0 for part in topic["partitions"])]
        nodes = tuple(sorted(broker["broker_id"] for broker in cluster["brokers"]))
        return Cluster(cluster["cluster_id"], nodes, len(topics), tuple(sorted(headless)))

    # Disk.

    def may_write(self, path: str) -> bool:
        return os.access(path, os.W_OK | os.X_OK | os.R_OK)

    def is_locked(self, path: str) -> bool:
        return is_locked(path)

    def file_system(self, path: str) -> FileSystem | None:
        device = os.stat(path).st_dev
        numbers = f"{os.major(device)}:{os.minor(device)}"
        real = os.path.realpath(path)
        best = None
        for mount_point, kind, mounted in _mounts():
            inside = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
            if inside and (best is None or len(mount_point) >= len(best.mount_point)):
                best = FileSystem(kind, mount_point, mounted)
        # btrfs and others have devices of their own that no disk has: the mount names the disk then.
        return FileSystem(best.kind, best.mount_point, numbers) if best and best.device == numbers else best

    def write_caches(self, device: str) -> dict[str, str]:
        """The kernel's write cache mode of the disks under a device, by name; empty if it does not tell."""
        try:
            return dict(_caches(Path("/sys/dev/block", device).resolve()))
        except OSError:
            return {}

    def reads_without_waiting(self, path: str) -> bool | None:
        """Whether RWF_NOWAIT works on this file."""
        flag = getattr(os, "RWF_NOWAIT", 0)
        if not flag:
            return False
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.preadv(fd, [bytearray(1)], 0, flag)
        except OSError as error:
            return error.errno == errno.EAGAIN
        finally:
            os.close(fd)
        return True

    # Clock, memory, limits, programs.

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def clock_is_synchronised(self) -> bool | None:
        """What the kernel has been told by whatever sets its clock (adjtimex); None where that cannot be asked."""
        try:
            state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
        except (OSError, AttributeError):
            return None
        return None if state < 0 else state != _TIME_ERROR

    def file_limit(self) -> int:
        """As start takes it: the hard limit. -1 is none."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def memory(self) -> dict[str, int]:
        """Bytes, by /proc/meminfo's names; `limit` is the container's, if it has one. Empty where there is none."""
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:
            return {}
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        for path in _CGROUP_LIMITS:
            try:
                text = Path(path).read_text().strip()
            except OSError:
                continue
            if text.isdigit() and int(text) < found["MemTotal"]:
                found["limit"] = int(text)
        return found

    def has_module(self, name: str) -> bool:
        return importlib.util.find_spec(name) is not None

    def program(self, name: str) -> str | None:
        return shutil.which(name)


def _mounts() -> Iterator[tuple[str, str, str]]:
    """(mount point, kind of file system, major:minor)."""
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        # Blanks in it are written as octal.
        yield fields[4].encode().decode("unicode_escape"), after.split(" ")[0], fields[2]


def _caches(device: Path) -> Iterator[tuple[str, str]]:
    """Of a disk, of the disk that a partition is on, or of those that a mapped or RAID device is made of."""
    under = sorted((device / "slaves").iterdir()) if (device / "slaves").is_dir() else []
    if under:
        for link in under:
            yield from _caches(link.resolve())
        return
    disk = device if (device / "queue").is_dir() else device.parent
    mode = disk / "queue" / "write_cache"
    if mode.is_file():
        yield disk.name, mode.read_text().strip()
