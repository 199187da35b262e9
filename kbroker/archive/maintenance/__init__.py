"""What keeps an archive fast and small: merges of files and manifests, expiry of snapshots, deletion of orphans.

The commands `kbroker archive compact`, `expire`, `erase` and `convert`, and the quiet moments of `kbroker archive run`.
"""

from kbroker.archive.maintenance.upkeep import MaintenanceSummary, maintain

__all__ = ["MaintenanceSummary", "maintain"]
