"""The data directory: it belongs to one broker of one cluster (meta.properties), and one process uses it (.lock)."""

from kbroker.common import uuid_text
from kbroker.runtime.disk import DiskLock
from kbroker.runtime.environment import Environment
from kbroker.storage import file_names
from kbroker.storage.file_names import META_PROPERTIES
from kbroker.storage.metadata_files import MetaProperties, read_meta_properties, write_meta_properties


class DirectoryInUse(Exception):
    """Another broker runs on this data directory."""


class ForeignDirectory(Exception):
    """The data directory belongs to another broker or cluster, or its owner is unknown."""


class DataDirectory:
    def __init__(self, environment: Environment, path: str) -> None:
        self.path = path
        self._environment = environment
        self._lock: DiskLock | None = None
        # The content that was read last.
        self._meta_properties: MetaProperties | None = None
        # Whether this process has assigned the directory to its broker and cluster.
        self._is_new = False
        self._was_empty = self._is_forgotten = False

    async def lock(self) -> None:
        """Create the directory if needed, and lock it. Raises DirectoryInUse, OSError."""
        try:
            self._lock = await self._environment.offload(self._lock_blocking)
        except BlockingIOError:
            raise DirectoryInUse(f"{self.path} is in use by another broker") from None

    def _lock_blocking(self) -> DiskLock:
        disk = self._environment.disk
        disk.makedirs(self.path)
        lock = disk.lock(f"{self.path}/{file_names.LOCK}")
        self._was_empty = disk.listdir(self.path) == [file_names.LOCK]
        return lock

    async def unlock(self) -> None:
        if self._is_forgotten and self._was_empty:
            await self._environment.offload(self._clear_blocking)
        if self._lock is not None:
            self._lock.close()

    def _clear_blocking(self) -> None:
        """Delete the empty logs of a broker that could not join, and the files that its shutdown has written."""
        disk = self._environment.disk
        for name in disk.listdir(self.path):
            path = f"{self.path}/{name}"
            if disk.isdir(path):
                disk.rmtree(path)
            elif name != file_names.LOCK:
                disk.unlink(path)

    async def check_owner(self, node_id: int, cluster_id: str | None = None) -> None:
        """Raise ForeignDirectory if the directory belongs to another broker or cluster.

        A new directory is assigned to this broker once the cluster id is known. As in Kafka, two brokers that are
        started with each other's directories thus do not destroy their data.
        """
        await self._environment.offload(self._check_owner_blocking, node_id, cluster_id)

    def _check_owner_blocking(self, node_id: int, cluster_id: str | None) -> None:
        disk = self._environment.disk
        try:
            meta = self._meta_properties = read_meta_properties(disk, self.path)
        except ValueError as error:
            raise ForeignDirectory(f"{self.path}/{META_PROPERTIES} is damaged: {error}") from None
        if meta is None:
            if cluster_id is not None:
                directory_id = uuid_text(self._environment.random.randbytes(16))
                meta = self._meta_properties = MetaProperties(cluster_id, node_id, directory_id.replace("-", "_"))
                write_meta_properties(disk, self.path, meta)
                self._is_new = True
        elif meta.node_id != node_id:
            raise ForeignDirectory(f"{self.path} belongs to node.id={meta.node_id}; this broker has node.id={node_id}")
        elif cluster_id is not None and meta.cluster_id != cluster_id:
            raise ForeignDirectory(f"{self.path} belongs to cluster {meta.cluster_id}; this broker is in {cluster_id}")

    async def forget_owner(self) -> None:
        """Undo the assignment of a new directory: the broker could not join the cluster.

        If the directory was empty before, it is again when it is unlocked.
        """
        if self._is_new:
            self._is_new, self._is_forgotten = False, True
            await self._environment.offload(self._environment.disk.unlink, f"{self.path}/{META_PROPERTIES}")

    @property
    def directory_id(self) -> str:
        """The id that the directory got when it was first used (KIP-858); empty before `check_owner` has read it."""
        return "" if self._meta_properties is None else self._meta_properties.directory_id

    def check_new(self, coordination: str) -> None:
        """Raise ForeignDirectory if the directory was used before. Called if `coordination` has no cluster.

        The metadata of its topics is lost, and a start would set all their logs aside.
        """
        if self._meta_properties is not None:
            raise ForeignDirectory(
                f"{self.path} belongs to cluster {self._meta_properties.cluster_id}, and the metadata of its "
                f"topics is missing from {coordination}: restore it there. (Without {META_PROPERTIES} the broker would "
                "begin a new, empty cluster: its topics and their records could not be read until that file and the "
                "metadata are restored, and other brokers of its cluster at this address would stop.)"
            )
