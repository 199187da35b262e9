"""Checks of the configuration and of the addresses that it names."""

from collections.abc import Iterator

from kbroker.cli.common.formatting import count_text
from kbroker.cli.doctor.check import OK, PROBLEM, WARNING, CheckContext, CheckResult
from kbroker.config.broker.listeners import WILDCARDS, Endpoint
from kbroker.config.config_resource import ConfigResourceType
from kbroker.config.no_effect_warnings import no_effect_warnings


def check_configuration(context: CheckContext) -> Iterator[CheckResult]:
    config = context.config
    for name, values in (("log.dirs", config.log_dirs), ("listeners", config.listeners)):
        if len(values) != 1:
            message, advice = f"{name} has {len(values)} values", f"Set one: kbroker supports one of {name}."
            yield CheckResult("configuration", PROBLEM, message, advice)
    ignored = no_effect_warnings(ConfigResourceType.BROKER, config.static_configs)
    for message in ignored:
        yield CheckResult("configuration", WARNING, message, "Remove it, or do not rely on it.")
    if not ignored:
        yield CheckResult("configuration", OK, f"node.id={config.node_id}, {len(config.static_configs)} properties set")


def check_listener(context: CheckContext) -> Iterator[CheckResult]:
    host, listener = context.host, context.config.listeners[0]
    error = host.bind_error(listener.host, listener.port)
    if error is None:
        yield CheckResult("listener", OK, f"{listener} can be bound")
        return
    address = "127.0.0.1" if listener.host in WILDCARDS else listener.host
    is_listening = host.connect_error(address, listener.port) is None
    cluster = host.describe_cluster(address, listener.port) if is_listening else None
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
    if cluster.under_replicated:
        message = f"{count_text(cluster.under_replicated, 'partition')} with fewer in-sync replicas than replicas"
        advice = "See kbroker cluster status, and kbroker topics describe --under-replicated."
        yield CheckResult("replicas", WARNING, message, advice)


def check_advertised(context: CheckContext) -> Iterator[CheckResult]:
    host, endpoint = context.host, context.config.advertised_listeners[0]
    listener = context.config.listeners[0]
    name = "advertised address"
    try:
        addresses = host.resolve(endpoint.host)
    except OSError as error:
        advice = "Advertise a name that clients can resolve, with --advertise."
        yield CheckResult(name, PROBLEM, f"{endpoint.host} cannot be resolved: {error.strerror}", advice)
        return
    if all(_is_loopback(address) for address in addresses) and not _is_local(listener):
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


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _is_local(listener: Endpoint) -> bool:
    return listener.host == "localhost" or _is_loopback(listener.host)
