"""`kbroker doctor`: check whether a broker with these options would start and run well."""

import os
import sys
from collections.abc import Iterator, Sequence

import typer

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import print_json
from kbroker.cli.doctor.broker_checks import check_advertised, check_configuration, check_listener
from kbroker.cli.doctor.check import PROBLEM, WARNING, Check, CheckContext, CheckResult
from kbroker.cli.doctor.cluster_checks import check_cluster
from kbroker.cli.doctor.host import Host
from kbroker.cli.doctor.host_checks import check_clock, check_memory, check_open_files, check_programs
from kbroker.cli.doctor.storage_checks import (
    check_data_directory,
    check_disk_space,
    check_file_system,
    check_last_stop,
)
from kbroker.cli.start.command import Advertise, ConfigFile, DataDir, Listen, Properties
from kbroker.cli.start.options import StartOptions, load_properties
from kbroker.config import BrokerConfig, ConfigError
from kbroker.runtime.disk import Disk
from kbroker.runtime.real_disk import RealDisk

# In the order of the startup. They rely on check_configuration: there is one data directory and one listener.
CHECKS: tuple[Check, ...] = (
    check_listener,
    check_advertised,
    check_data_directory,
    check_cluster,
    check_disk_space,
    check_file_system,
    check_last_stop,
    check_clock,
    check_open_files,
    check_memory,
)


def doctor(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    listen: Listen = None,
    advertise: Advertise = None,
    properties: Properties = None,
    as_json: AsJson = False,
) -> None:
    """Check whether a broker can start and run well with the same options as `kbroker start`.

    Checks the configuration, network, disk, clock and limits, and changes nothing. If a broker is running on the data
    directory, checks it as well. With zookeeper.connect, checks the ensemble and the other brokers, too. The exit
    status is 1 if there is a problem; warnings do not change it.
    """
    options = StartOptions(config, data_dir, listen, advertise, properties or [])
    results = list(run_checks(options, Host(), RealDisk()))
    if as_json:
        print_json([result.to_json() for result in results])
    else:
        _print_results(results)
    raise typer.Exit(1 if any(result.status == PROBLEM for result in results) else 0)


def run_checks(options: StartOptions, host: Host, disk: Disk) -> Iterator[CheckResult]:
    """Yield the results of all checks, or of those that run before the configuration turns out to be invalid."""
    try:
        static, warnings = load_properties(options, os.environ)
        config = BrokerConfig.load({name: source.text for name, source in static.items()})
    except (CliError, ConfigError) as error:
        advice = "Fix this; the broker will not start with this configuration."
        yield CheckResult("configuration", PROBLEM, str(error), advice)
        return
    for warning in warnings:
        yield CheckResult("configuration", WARNING, warning, "Remove it: kbroker ignores it.")
    context = CheckContext(host, disk, config)
    results = list(check_configuration(context))
    yield from results
    if any(result.status == PROBLEM for result in results):
        return
    for check in CHECKS:
        yield from check(context)
    yield from check_programs(context, sys.version_info[:3])


def _print_results(results: Sequence[CheckResult]) -> None:
    """Print one line per result, and a second line for advice."""
    has_colors = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    colors = {"ok": "\x1b[32m", WARNING: "\x1b[33m", PROBLEM: "\x1b[31m"} if has_colors else {}
    off = "\x1b[0m" if has_colors else ""
    width = max(len(result.check) for result in results)
    for result in results:
        status = f"{colors.get(result.status, '')}{result.status:<7}{off}"
        print(f"{status}  {result.check:<{width}}  {result.message}")
        if result.advice:
            print(f"{'':7}  {'':{width}}  -> {result.advice}")
    problems = sum(result.status == PROBLEM for result in results)
    warnings = sum(result.status == WARNING for result in results)
    print(f"{count_text(problems, 'problem')}, {count_text(warnings, 'warning')}")
