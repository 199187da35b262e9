"""`kbroker start --brokers 3` as a process of the tests."""

from pathlib import Path

from tests.compat.cluster.views import cluster_view
from tests.compat.support import BrokerProcess


class LocalCluster(BrokerProcess):
    """The parent of three brokers."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--brokers", "3"]

    @property
    def addresses(self) -> list[str]:
        """The bootstrap addresses of the brokers."""
        match = self.READY.search((self.data_dir.parent / f"stdout-{self.starts}").read_text())
        assert match is not None
        return match[1].split(",")

    def broker_pids(self) -> list[int]:
        """Return the processes of the brokers, in the order of their ids."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sorted(int(pid) for pid in children)

    def is_healthy(self) -> bool:
        views = [cluster_view(address) for address in self.addresses]
        return all(view is not None and view.brokers == {1, 2, 3} and view.is_fully_replicated for view in views)
