"""kill -9 of coordinators, leaders and members, under groups of both protocols of consumers and a share group.

Three brokers, three ZooKeeper servers. Commits never go back, no record is skipped, and a share group gets no record
again after the response to its acknowledgement.
"""

import argparse
import logging
import math
import sys
import tempfile
import time
from pathlib import Path

from tests.compat.cluster.cluster import running_cluster
from tests.compat.cluster.groups.kills import run_kills


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.cluster.groups", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="nothing is killed after this time")
    parser.add_argument("--seed", type=int, default=1, help="chooses what is killed")
    parser.add_argument("--directory", type=Path, help="for data and logs (default: a new one); they are kept")
    options = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    directory = options.directory or Path(tempfile.mkdtemp(prefix=f"kbroker-groups-{options.seed}-"))
    print(f"logs: {directory}", flush=True)
    end_s = time.monotonic() + options.minutes * 60
    with running_cluster(directory) as cluster:
        run_kills(cluster, options.seed, options.kills, end_s, lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
