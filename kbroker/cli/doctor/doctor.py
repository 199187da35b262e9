"""`kbroker doctor`: check whether a broker with these options would start and run well."""

import os
import sys
from collections.abc import Iterator, Sequence

import typer

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import GREEN, RED, YELLOW, colored, print_json
from kbroker.cli.common.values import count_text, format_size
from kbroker.cli.doctor.cluster_checks import check_cluster
from kbroker.cli.doctor.host import OK, PROBLEM, WARNING, Check, CheckContext, CheckResult, Host
from kbroker.cli.doctor.security_checks import (
    check_certificates,
    check_open_listeners,
    check_secret_files,
    is_loopback,
)
from kbroker.cli.doctor.storage_checks import check_data_directory, check_disk_space, check_file_system, check_last_stop
from kbroker.cli.start.command import Advertise, ConfigFile, DataDir, Listen, Properties, Secure
from kbroker.cli.start.options import StartOptions, load_properties
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.broker.listeners import PLAINTEXT, WILDCARDS, Endpoint
from kbroker.config.config_def import ConfigResourceType
from kbroker.config.definitions.broker import BROKER_CONFIGS, strip_listener_prefix
from kbroker.config.no_effect_warnings import no_effect_warnings
from kbroker.config.sources.static_configs import StaticConfigs
from kbroker.config.values import PASSWORD
from kbroker.runtime.disk import Disk
from kbroker.runtime.real_disk import RealDisk


def check_configuration(context: CheckContext) -> Iterator[CheckResult]:
    config = context.config
    if len(config.log_dirs) != 1:
        message = f"log.dirs has {len(config.log_dirs)} values"
        yield CheckResult("configuration", PROBLEM, message, "Set one: kbroker supports one of log.dirs.")
    advertised = {endpoint.name for endpoint in config.advertised_listeners}
    for listener in config.listeners:
        if listener.name not in advertised:
            message = f"{listener} is not advertised: its clients get no address of any broker"
            yield CheckResult("configuration", WARNING, message, "Advertise an address for it, with --advertise.")
    ignored = no_effect_warnings(ConfigResourceType.BROKER, config.static_configs)
    for message in ignored:
        yield CheckResult("configuration", WARNING, message, "Remove it, or do not rely on it.")
    if not ignored:
        yield CheckResult("configuration", OK, f"node.id={config.node_id}, {len(config.static_configs)} properties set")


def check_listeners(context: CheckContext) -> Iterator[CheckResult]:
    for listener in context.config.listeners:
        yield from _check_listener(context, listener)


def _check_listener(context: CheckContext, listener: Endpoint) -> Iterator[CheckResult]:
    host = context.host
    error = host.bind_error(listener.host, listener.port)
    if error is None:
        yield CheckResult("listener", OK, f"{listener} can be bound")
        return
    address = "127.0.0.1" if listener.host in WILDCARDS else listener.host
    if listener.security_protocol.endswith("SSL"):
        # A name of the certificate.
        advertised = {each.name: each.host for each in context.config.advertised_listeners}
        address = advertised.get(listener.name, address)
    is_listening = host.connect_error(address, listener.port) is None
    cluster = host.describe_cluster(address, listener.port) if is_listening else None
    if cluster is None and is_listening and context.is_running and listener.security_protocol != PLAINTEXT:
        advice = "To check it, say with --command-config how clients connect to this listener."
        yield CheckResult("listener", WARNING, f"{listener} accepts connections, and no login as this client", advice)
        return
    if cluster is None:
        advice = "Stop the process that listens there, or choose another port with --listen."
        yield CheckResult("listener", PROBLEM, f"{listener} cannot be bound: {error.strerror or error}", advice)
        return
    own = context.meta_properties()
    serving = f"a broker of cluster {cluster.cluster_id} serves {listener}: {count_text(cluster.topics, 'topic')}"
    if own is None or own.cluster_id != cluster.cluster_id:
        advice = "Stop it, or choose another port with --listen."
        yield CheckResult("listener", PROBLEM, f"{serving}, and its data is not in {context.data_dir}", advice)
        return
    yield CheckResult("listener", OK, serving)
    if cluster.without_leader:
        names = ", ".join(cluster.without_leader[:5]) + (", ..." if len(cluster.without_leader) > 5 else "")
        advice = "The broker's log says why their logs could not be opened."
        yield CheckResult("topics", PROBLEM, f"without a leader: {names}", advice)
    if cluster.failing_brokers:
        message = f"brokers that cannot write to their disks: {', '.join(map(str, cluster.failing_brokers))}"
        advice = "Free space there, or make the file system writable: their logs say which error they have."
        yield CheckResult("disk writes", PROBLEM, message, advice)
    for message in cluster.late_archives:
        advice = "Start kbroker archive run again, or read its log; see also kbroker topics describe."
        yield CheckResult("archives", WARNING, message, advice)
    if cluster.under_replicated:
        message = f"{count_text(cluster.under_replicated, 'partition')} with fewer in-sync replicas than replicas"
        advice = "See kbroker cluster status, and kbroker topics describe --under-replicated."
        yield CheckResult("replicas", WARNING, message, advice)


def check_advertised(context: CheckContext) -> Iterator[CheckResult]:
    listeners = {listener.name: listener for listener in context.config.listeners}
    for endpoint in context.config.advertised_listeners:
        yield from _check_advertised(context, endpoint, listeners[endpoint.name])


def _check_advertised(context: CheckContext, endpoint: Endpoint, listener: Endpoint) -> Iterator[CheckResult]:
    host, name = context.host, "advertised address"
    try:
        addresses = host.resolve(endpoint.host)
    except OSError as error:
        advice = "Advertise a name that clients can resolve, with --advertise."
        yield CheckResult(name, PROBLEM, f"{endpoint.host} cannot be resolved: {error.strerror}", advice)
        return
    if all(map(is_loopback, addresses)) and not is_loopback(listener.host):
        message = f"{endpoint.address} is reachable from this machine only, but {listener} accepts others"
        advice = "Advertise a name that other machines can resolve, with --advertise, or listen on 127.0.0.1 only."
        yield CheckResult(name, WARNING, message, advice)
        return
    if context.is_running and endpoint.port:
        error_to_connect = host.connect_error(endpoint.host, endpoint.port)
        if error_to_connect is not None:
            reason = error_to_connect.strerror or error_to_connect
            message = f"the broker is running, but {endpoint.address} cannot be reached: {reason}"
            advice = "Clients connect to this address and will fail: fix the network, or --advertise another address."
            yield CheckResult(name, PROBLEM, message, advice)
            return
    yield CheckResult(name, OK, f"{endpoint.address} is {', '.join(addresses)}")


CLOCK_SLACK_MS = 60_000
# Open files of a partition (its active segment, segments being read, and their indexes), and all others.
FILES_PER_PARTITION, OTHER_FILES = 4, 1000
LOW_MEMORY_BYTES = 256 << 20
HIGH_SWAP_SHARE = 0.5


def check_clock(context: CheckContext) -> Iterator[CheckResult]:
    host = context.host
    now_ms = host.now_ms()
    for directory in context.partitions().values():
        for name in context.disk.listdir(directory):
            try:
                ahead_ms = context.disk.mtime_ms(f"{directory}/{name}") - now_ms
            except FileNotFoundError:
                continue
            if ahead_ms > CLOCK_SLACK_MS:
                message = f"{directory}/{name} was written {ahead_ms // 1000} s in the future"
                yield CheckResult("clock", PROBLEM, message, "Set the clock: retention and reads by time depend on it.")
                return
    is_synchronized = host.is_clock_synchronized()
    if is_synchronized is None:
        yield CheckResult("clock", OK, "synchronization is unknown on this system")
    elif is_synchronized:
        yield CheckResult("clock", OK, "synchronized")
    else:
        advice = "Run chronyd, systemd-timesyncd or another NTP client, unless the hypervisor sets the clock."
        yield CheckResult("clock", WARNING, "not synchronized according to the kernel", advice)


def check_open_files(context: CheckContext) -> Iterator[CheckResult]:
    limit, partitions = context.host.max_open_files(), len(context.partitions())
    needed = partitions * FILES_PER_PARTITION + OTHER_FILES
    limit_text = "unlimited" if limit < 0 else f"at most {limit}"
    message = f"{limit_text}, for {count_text(partitions, 'partition')} and the connections"
    if 0 <= limit < needed:
        advice = f"Raise the hard limit to {needed} or more (ulimit -Hn, LimitNOFILE=)."
        yield CheckResult("open files", WARNING, message, advice)
    else:
        yield CheckResult("open files", OK, message)


def check_memory(context: CheckContext) -> Iterator[CheckResult]:
    memory = context.host.memory()
    if not memory:
        yield CheckResult("memory", OK, "unknown on this system")
        return
    available = min(memory.get("MemAvailable", 0), memory.get("limit", 1 << 62))
    message = f"{format_size(available)} available"
    if "limit" in memory:
        message += f", container limit {format_size(memory['limit'])}"
    swap = memory.get("SwapTotal", 0)
    used_swap = swap - memory.get("SwapFree", 0)
    if available < LOW_MEMORY_BYTES:
        yield CheckResult("memory", WARNING, message, "Add memory: consumers read from the page cache.")
    elif swap and used_swap > HIGH_SWAP_SHARE * swap:
        message += f"; {format_size(used_swap)} of {format_size(swap)} swap used"
        advice = "Find out what uses the memory: a broker in swap responds late."
        yield CheckResult("memory", WARNING, message, advice)
    else:
        yield CheckResult("memory", OK, message)


def check_programs(context: CheckContext, python_version: tuple[int, ...]) -> Iterator[CheckResult]:
    host = context.host
    version = ".".join(map(str, python_version[:3]))
    if host.has_module("uvloop"):
        yield CheckResult("programs", OK, f"Python {version} with uvloop")
    else:
        yield CheckResult("programs", WARNING, f"Python {version} without uvloop", "pip install uvloop: it is faster.")
    yield from _check_spark(host)


def _check_spark(host: Host) -> Iterator[CheckResult]:
    """Check for Java if pyspark is installed: nothing else needs it."""
    if not host.has_module("pyspark"):
        return
    java = host.find_program("java")
    if java is None:
        advice = "Install a Java runtime of version 17 or newer."
        yield CheckResult("Spark", WARNING, "pyspark is installed, but java is not", advice)
    else:
        yield CheckResult("Spark", OK, f"pyspark, and java at {java}")


# In the order of the startup. They rely on check_configuration: there is one data directory and one listener.
CHECKS: tuple[Check, ...] = (
    check_listeners,
    check_advertised,
    check_certificates,
    check_open_listeners,
    check_secret_files,
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
    secure: Secure = False,
    as_json: AsJson = False,
) -> None:
    """Check whether a broker can start and run well with the same options as `kbroker start`.

    Checks the configuration, network, disk, clock and limits, and changes nothing. If a broker is running on the data
    directory, checks it as well. With zookeeper.connect, checks the ensemble and the other brokers, too. The exit
    status is 1 if there is a problem; warnings do not change it.
    """
    options = StartOptions(config, data_dir, listen or [], advertise or [], properties or [], secure=secure)
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
        if options.secure:
            from kbroker.cli.start.secure import secured_properties

            static = secured_properties(static)
        config = BrokerConfig.load({name: source.text for name, source in static.items()})
    except (CliError, ConfigError) as error:
        advice = "Fix this; the broker will not start with this configuration."
        yield CheckResult("configuration", PROBLEM, str(error), advice)
        return
    for warning in warnings:
        yield CheckResult("configuration", WARNING, warning, "Remove it: kbroker ignores it.")
    context = CheckContext(host, disk, config, _secret_files(static))
    results = list(check_configuration(context))
    yield from results
    if any(result.status == PROBLEM for result in results):
        return
    for check in CHECKS:
        yield from check(context)
    yield from check_programs(context, sys.version_info[:3])


def _secret_files(static: StaticConfigs) -> tuple[str, ...]:
    """Return the files from which the configuration has passwords."""
    files: dict[str, None] = {}
    for name, source in static.items():
        key = BROKER_CONFIGS.get(strip_listener_prefix(name))
        path, separator, _ = source.origin.rpartition(":")
        if key is not None and key.type is PASSWORD and separator:
            files[path] = None
    return tuple(files)


def _print_results(results: Sequence[CheckResult]) -> None:
    """Print one line per result, and a second line for advice."""
    colors = {OK: GREEN, WARNING: YELLOW, PROBLEM: RED}
    width = max(len(result.check) for result in results)
    for result in results:
        print(f"{colored(f'{result.status:<7}', colors[result.status])}  {result.check:<{width}}  {result.message}")
        if result.advice:
            print(f"{'':7}  {'':{width}}  -> {result.advice}")
    problems = sum(result.status == PROBLEM for result in results)
    warnings = sum(result.status == WARNING for result in results)
    print(f"{count_text(problems, 'problem')}, {count_text(warnings, 'warning')}")
