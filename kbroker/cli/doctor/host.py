"""What `kbroker doctor` checks, read only: this machine, a running broker, what is in ZooKeeper; and the results."""

import ctypes
import importlib.util
import os
import resource
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cli.common.errors import CliError
from kbroker.cli.start.directories import is_cluster_directory, is_locked
from kbroker.common import TopicPartition, format_address
from kbroker.config import BrokerConfig
from kbroker.metadata.store.change_log import ChangeLog
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names, metadata_files

if TYPE_CHECKING:
    from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
    from kbroker.metadata.image import BrokerRegistration
    from protocol.messages.k32_describe_configs import DescribeConfigsResult

ZOOKEEPER_TIMEOUT_S = 5.0
# These differ between the brokers of every cluster, or may: those that are compared are registered in the same
# coordination service, and with `kbroker start --brokers N` each has another address for it.
OWN_CONFIGS = frozenset(
    {
        "node.id", "broker.id", "broker.rack", "listeners", "advertised.listeners", "log.dir", "log.dirs",
        "kbroker.inter.broker.listener", "kbroker.metrics.listener", "kbroker.zookeeper.digest", "zookeeper.connect",
    }
)  # fmt: skip


class ClusterUnreadable(Exception):
    """What is in ZooKeeper cannot be read."""


class ForeignNodes(Exception):
    """The nodes in ZooKeeper are those of another program."""


@dataclass(slots=True, frozen=True)
class StoredCluster:
    """`cluster_id` is empty before the cluster's first start. `brokers`: those that are registered, by id.

    `changes`: the last change. `recovering`: the number of partitions whose leader is found by the logs.
    """

    cluster_id: str = ""
    brokers: Mapping[int, "BrokerRegistration"] = field(default_factory=dict)
    changes: ChangeLog = field(default_factory=ChangeLog)
    recovering: int = 0


def read_cluster(settings: "ZooKeeperSettings") -> StoredCluster:
    """Return the cluster that is stored in ZooKeeper. Creates nothing. Raises ClusterUnreadable, ForeignNodes."""
    import asyncio

    try:
        return asyncio.run(_read_cluster(settings))
    except OSError as error:
        raise ClusterUnreadable(f"{error.filename}: {error.strerror}") from None


async def _read_cluster(settings: "ZooKeeperSettings") -> StoredCluster:
    import asyncio

    from kbroker.coordination.interface import CoordinationError
    from kbroker.coordination.zookeeper.open_session import ZooKeeperUnusable, check_chroot
    from kbroker.coordination.zookeeper.session import ZooKeeperSession
    from kbroker.metadata.store import znodes
    from kbroker.metadata.store.change_log import decode_change_log

    session = ZooKeeperSession(asyncio.get_running_loop(), settings)
    session.start()
    try:
        async with asyncio.timeout(ZOOKEEPER_TIMEOUT_S):
            await asyncio.shield(session.connected)
        await check_chroot(session, settings, lambda place: None)
        session.chroot = settings.chroot
        if await session.exists(znodes.CLUSTER_ID) is None:
            return StoredCluster()
        node = await session.get(znodes.CLUSTER_ID)
        names = await session.children(znodes.BROKERS)
        brokers = {}
        for name in filter(str.isdecimal, names):
            (found,) = await session.get_many([znodes.broker_path(int(name))])
            if found is not None:
                brokers[int(name)] = znodes.decode_broker(int(name), found.data).registration
        changes = decode_change_log((await session.get(znodes.CHANGES)).data)
        numbers = [int(name) for name in await session.children(znodes.PARTITIONS)]
        chunks = await session.get_many([znodes.chunk_path(number) for number in numbers])
        recovering = sum(
            partition.is_recovering
            for number, chunk in zip(numbers, chunks, strict=True)
            for partitions in znodes.decode_chunk(number, b"{}" if chunk is None else chunk.data).values()
            for partition in partitions.values()
        )
        return StoredCluster(str(znodes.decode(znodes.CLUSTER_ID, node.data)["id"]), brokers, changes, recovering)
    except TimeoutError:
        raise ClusterUnreadable(session.last_warning or f"no response in {ZOOKEEPER_TIMEOUT_S:g} s") from None
    except ZooKeeperUnusable as error:
        raise ForeignNodes(str(error)) from None
    except CoordinationError as error:
        raise ClusterUnreadable(str(error)) from None
    finally:
        await session.close()


def broker_configs(address: str, node_id: int) -> dict[str, str | None] | None:
    """Return the values of a broker's configs without those that are its own; None if it does not respond."""
    from kbroker.cli.common.client import admin_client
    from kbroker.client.admin import BROKER, TypedResource, describe_configs

    try:
        with admin_client(address) as client:
            [described] = describe_configs(client, [TypedResource(BROKER, str(node_id))], broker=node_id)
    except CliError:
        return None
    return shared_configs(described)


def shared_configs(described: "DescribeConfigsResult") -> dict[str, str | None]:
    """Return the configs of a broker that other brokers should have, too."""
    return {
        config.name: config.value
        for config in described.configs
        if config.name not in OWN_CONFIGS and not config.is_sensitive
    }


CONNECT_TIMEOUT_S = 2.0
# adjtimex(2) returns this state for a clock that is not synchronized.
_TIME_ERROR = 5
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(slots=True, frozen=True)
class RunningCluster:
    """The cluster of a running broker."""

    cluster_id: str
    broker_ids: tuple[int, ...]
    topics: int
    without_leader: tuple[str, ...]
    under_replicated: int = 0
    failing_brokers: tuple[int, ...] = ()
    late_archives: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class FileSystem:
    """The file system of a path: its kind ("ext4"), where it is mounted, its device as `major:minor`."""

    kind: str
    mount_point: str
    device: str


class Host:
    """This machine. Paths must exist unless a method says otherwise; a value that cannot be determined is None."""

    # Network.

    def bind_error(self, host: str, port: int) -> OSError | None:
        """Return why a listener cannot be bound to this address, None if it can."""
        try:
            addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            with socket.socket(addresses[0][0], socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(addresses[0][4])
        except OSError as error:
            return error
        return None

    def resolve(self, host: str) -> list[str]:
        """Return the addresses of a host name. Raises OSError."""
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})

    def connect_error(self, host: str, port: int, tls: tuple[ssl.SSLContext, str] | None = None) -> OSError | None:
        """Return why a connection fails, None if it succeeds. `tls`: its context, and the host of the certificate."""
        try:
            with socket.create_connection((host, port), CONNECT_TIMEOUT_S) as connected:
                if tls is not None:
                    tls[0].wrap_socket(connected, server_hostname=tls[1]).close()
        except OSError as error:
            return error
        return None

    def describe_cluster(self, host: str, port: int) -> RunningCluster | None:
        """Return the cluster of the broker at this address, None if no broker responds."""
        from kbroker.cli.cluster.cluster_state import read_problems
        from kbroker.cli.common.client import admin_client
        from kbroker.cli.topics.archive_lag import late_archives
        from kbroker.client.admin import describe_cluster, describe_topics

        try:
            with admin_client(format_address(host, port)) as client:
                cluster = describe_cluster(client)
                topics = describe_topics(client)
                problems = read_problems(client)
                late = late_archives(client, topics)
        except CliError:
            return None
        without_leader = [topic.name for topic in topics if any(part.leader_id < 0 for part in topic.partitions)]
        broker_ids = tuple(sorted(broker.broker_id for broker in cluster.brokers if not broker.is_fenced))
        partitions = [partition for topic in topics for partition in topic.partitions]
        under_replicated = sum(len(part.isr_nodes) < len(part.replica_nodes) for part in partitions)
        return RunningCluster(
            cluster.cluster_id,
            broker_ids,
            len(topics),
            tuple(sorted(without_leader)),
            under_replicated,
            tuple(problems.failing_brokers),
            tuple(late),
        )

    def read_cluster(self, settings: "ZooKeeperSettings") -> StoredCluster:
        """Return what is stored in ZooKeeper. Raises ClusterUnreadable."""
        return read_cluster(settings)

    def broker_configs(self, address: str, node_id: int) -> dict[str, str | None] | None:
        """Return the configs that the brokers of a cluster should share; None if the broker does not respond."""
        return broker_configs(address, node_id)

    # Disk.

    def is_writable(self, path: str) -> bool:
        return os.access(path, os.W_OK | os.X_OK | os.R_OK)

    def is_locked(self, path: str) -> bool:
        return is_locked(path)

    def file_system(self, path: str) -> FileSystem | None:
        """Return the file system that a path is on."""
        device = os.stat(path).st_dev
        numbers = f"{os.major(device)}:{os.minor(device)}"
        real = os.path.realpath(path)
        best = None
        for mount_point, kind, mounted_device in _mounts():
            is_inside = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
            if is_inside and (best is None or len(mount_point) >= len(best.mount_point)):
                best = FileSystem(kind, mount_point, mounted_device)
        # For btrfs and others, stat returns a device number that belongs to no disk; the mount has the disk's number.
        return FileSystem(best.kind, best.mount_point, numbers) if best and best.device == numbers else best

    def write_caches(self, device: str) -> dict[str, str]:
        """Return the kernel's write cache mode by name of the disks under a device; empty if it is unknown."""
        try:
            return dict(_write_caches(Path("/sys/dev/block", device).resolve()))
        except OSError:
            return {}

    # Clock, limits, memory, programs.

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def is_clock_synchronized(self) -> bool | None:
        """Return the kernel's synchronization state (adjtimex)."""
        try:
            state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
        except (OSError, AttributeError):
            return None
        return None if state < 0 else state != _TIME_ERROR

    def max_open_files(self) -> int:
        """Return the hard limit, which a broker raises its soft limit to; -1 for unlimited."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[1]

    def memory(self) -> dict[str, int]:
        """Return bytes by the names of /proc/meminfo, and a container's as `limit`; empty if it is unknown."""
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:
            return {}
        pairs = (line.partition(":")[::2] for line in lines)
        memory = {name: int(amount.split()[0]) * 1024 for name, amount in pairs}
        for path in _CGROUP_LIMITS:
            try:
                text = Path(path).read_text().strip()
            except OSError:
                continue
            if text.isdigit() and int(text) < memory["MemTotal"]:
                memory["limit"] = int(text)
        return memory

    def is_readable_by_others(self, path: str) -> bool:
        """Return whether the group or others can read a file."""
        return bool(os.stat(path).st_mode & 0o044)

    def has_module(self, name: str) -> bool:
        return importlib.util.find_spec(name) is not None

    def find_program(self, name: str) -> str | None:
        return shutil.which(name)


def _mounts() -> Iterator[tuple[str, str, str]]:
    """Yield (mount point, kind of file system, major:minor)."""
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        # Blanks in a mount point are escaped as octal.
        yield fields[4].encode().decode("unicode_escape"), after.split(" ")[0], fields[2]


def _write_caches(device: Path) -> Iterator[tuple[str, str]]:
    """Yield (disk, mode) for a disk, the disk of a partition, or the disks of a mapped or RAID device."""
    members = sorted((device / "slaves").iterdir()) if (device / "slaves").is_dir() else []
    if members:
        for link in members:
            yield from _write_caches(link.resolve())
        return
    disk = device if (device / "queue").is_dir() else device.parent
    mode = disk / "queue" / "write_cache"
    if mode.is_file():
        yield disk.name, mode.read_text().strip()


OK, WARNING, PROBLEM = "ok", "warning", "problem"


class CheckResult(NamedTuple):
    """One result of a check. `advice` is empty if there is nothing to do."""

    check: str
    status: str
    message: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        return {"check": self.check, "status": self.status, "found": self.message, "advice": self.advice}


def ok(check: str, message: str) -> CheckResult:
    return CheckResult(check, OK, message)


def warning(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, WARNING, message, advice)


def problem(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, PROBLEM, message, advice)


class CheckContext(NamedTuple):
    """The input of the checks: a host, a disk, and the configuration of a broker that would run there.

    `secret_files`: those from which the configuration has passwords.
    """

    host: Host
    disk: Disk
    config: BrokerConfig
    secret_files: tuple[str, ...] = ()

    @property
    def data_dir(self) -> str:
        return self.config.log_dirs[0]

    @property
    def is_running(self) -> bool:
        """Whether a broker is running on the data directory."""
        return self.host.is_locked(f"{self.data_dir}/{file_names.LOCK}")

    def partitions(self) -> dict[TopicPartition, str]:
        """Return partitions with the paths of their directories."""
        if not self.disk.isdir(self.data_dir) or is_cluster_directory(self.data_dir):
            return {}
        parsed = ((file_names.parse_partition_dir(name), name) for name in self.disk.listdir(self.data_dir))
        return {tp: f"{self.data_dir}/{name}" for tp, name in parsed if tp is not None and not name.endswith("-stray")}

    def existing_parent(self) -> str:
        """Return the data directory or, before the first start, the directory in which it will be created."""
        path = self.data_dir
        while not self.disk.exists(path):
            parent = path.rpartition("/")[0]
            path = parent or ("/" if path.startswith("/") else ".")
        return path

    def meta_properties(self) -> metadata_files.MetaProperties | None:
        """Return the meta.properties of the data directory; None if missing or damaged."""
        try:
            return metadata_files.read_meta_properties(self.disk, self.data_dir)
        except ValueError:
            return None


Check = Callable[[CheckContext], Iterable[CheckResult]]
