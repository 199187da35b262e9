"""The input and the results of the checks of `kbroker doctor`."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbroker.cli.doctor.host import Host
from kbroker.cli.start.cluster.cluster_directory import is_cluster_directory
from kbroker.common import TopicPartition
from kbroker.config import BrokerConfig
from kbroker.runtime.disk import Disk
from kbroker.storage import file_names, metadata_files

OK, WARNING, PROBLEM = "ok", "warning", "problem"


class CheckResult(NamedTuple):
    """One result of a check. `advice` is empty if there is nothing to do."""

    check: str
    status: str
    message: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        return {"check": self.check, "status": self.status, "found": self.message, "advice": self.advice}


class CheckContext(NamedTuple):
    """The input of the checks: a host, a disk, and the configuration of a broker that would run there."""

    host: Host
    disk: Disk
    config: BrokerConfig

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


Check = Callable[[CheckContext], Iterator[CheckResult]]
