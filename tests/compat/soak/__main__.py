"""Faults on real processes: four brokers and three ZooKeeper servers under load, with clients that check everything.

Producers, consumer groups, transactions and (--spark) a streaming query work while servers are killed, stopped, paused
and cut off from each other, one fault at a time. During some faults a plan drains a broker, or balances the cluster
again, and must end as it has shown. After each fault everything must be in sync again. In the end nothing that was
acknowledged may be lost, nothing may be there twice, and the replicas must have the same bytes.

Cuts need the right to create network namespaces; without it there are only the other faults.
"""

import argparse
import logging
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.compat.soak import network
from tests.compat.soak.soak import Bounds, Soak
from tests.compat.soak.spark_process import download_connector

MODULE = "tests.compat.soak"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {MODULE}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=math.inf, help="no fault begins after this time")
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults, their targets and durations")
    parser.add_argument("--spark", action="store_true", help="with a streaming query")
    parser.add_argument("--without-network", action="store_true", help="without network namespaces, and without cuts")
    parser.add_argument("--writes", type=float, default=20.0, metavar="SECONDS", help="the longest gap of a producer")
    parser.add_argument("--reads", type=float, default=30.0, metavar="SECONDS", help="the longest gap of a group")
    parser.add_argument(
        "--transactions", type=float, default=60.0, metavar="SECONDS", help="the longest gap of transactions, and Spark"
    )
    parser.add_argument("--directory", type=Path, help="for data and logs, kept (default: a new one, kept on failure)")
    options = parser.parse_args(arguments)
    if options.spark:
        download_connector()
    reason = "--without-network" if options.without_network else network.enter(MODULE, arguments)
    if reason:
        print(f"no network cuts: {reason}", flush=True)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    directory = options.directory or Path(tempfile.mkdtemp(prefix=f"kbroker-soak-{options.seed}-"))
    bounds = Bounds(options.writes, options.reads, options.transactions)
    start_s = time.monotonic()
    soak = Soak(directory.absolute(), options.seed, bounds, not reason, options.spark)
    failure, count = "", 0
    try:
        soak.start()
        while count < options.faults and time.monotonic() < start_s + options.minutes * 60:
            count += 1
            soak.run_fault(count)
        soak.finish()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        print(f"\nFAILED: {failure}", flush=True)
        soak.describe_failure()
    finally:
        soak.end()
    print("\n".join([*soak.report, *soak.violations]))
    verdict = "failed" if failure or soak.violations else "passed"
    print(f"{verdict}: seed {options.seed}, {count} faults, {time.monotonic() - start_s:.0f} s", flush=True)
    if verdict == "passed":
        if options.directory is None:
            shutil.rmtree(directory)
        return 0
    print(f"logs: {directory}\nrepeat: python -m {MODULE} {' '.join(arguments)}", flush=True)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
