"""Checks of a broker with zookeeper.connect: the ensemble, the other brokers, and what replication needs."""

import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from kbroker.cli.common.values import count_text
from kbroker.cli.doctor.host import (
    PROBLEM,
    WARNING,
    CheckContext,
    CheckResult,
    ClusterUnreadable,
    ForeignNodes,
    StoredCluster,
    ok,
    problem,
    warning,
)
from kbroker.client.key_stores import KeyStoreError, client_context
from kbroker.common import format_address
from kbroker.config import ConfigError
from kbroker.config.broker.zookeeper_settings import zookeeper_settings
from kbroker.metadata.image import BrokerEndpoint
from kbroker.metadata.recovery.log_recovery import needs_recovery
from kbroker.metadata.recovery.seen_metadata_file import read_seen_metadata

DEFAULT_FACTOR = "default.replication.factor"
MIN_ISR = "min.insync.replicas"
INTERNAL_FACTORS = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")


def check_cluster(context: CheckContext) -> Iterator[CheckResult]:
    if not context.config.get("zookeeper.connect"):
        return
    try:
        settings = zookeeper_settings(context.config.values)
    except ConfigError as error:
        yield problem("ZooKeeper", str(error), "Fix this; the broker will not start.")
        return
    results = list(_check_servers(context, settings.hosts))
    yield from results
    if results[0].status == PROBLEM:
        return
    try:
        cluster = context.host.read_cluster(settings)
    except ClusterUnreadable as error:
        message, advice = f"{settings.address} cannot be read: {error}", "Check the servers and the credentials."
        yield problem("ZooKeeper", message, advice)
        return
    except ForeignNodes as error:
        yield problem("cluster", str(error), "Correct zookeeper.connect: the broker will not start.")
        return
    yield from _check_identity(context, settings.address, cluster)
    yield from _check_history(context, settings.address, cluster)
    others = {id: broker for id, broker in cluster.brokers.items() if id != context.config.node_id}
    yield from _check_peers(context, cluster)
    racks = {id: broker.rack for id, broker in others.items()}
    yield from check_racks(racks | {context.config.node_id: context.config.broker_rack})
    yield from check_replication(context.config.get, len({*others, context.config.node_id}))
    if context.is_running:
        yield from _check_configs(context, cluster)


def _check_servers(context: CheckContext, hosts: tuple[str, ...]) -> Iterable[CheckResult]:
    failures = []
    for server in hosts:
        host, _, port = server.rpartition(":")
        error = context.host.connect_error(host.strip("[]"), int(port))
        if error is not None:
            failures.append(f"{server}: {error.strerror or error}")
    if not failures:
        servers = "the only server accepts" if len(hosts) == 1 else f"all {len(hosts)} servers accept"
        return [ok("ZooKeeper", f"{servers} connections")]
    is_majority = 2 * (len(hosts) - len(failures)) > len(hosts)
    advice = "Start the servers, or open the firewall. Metadata can be changed only while a majority runs."
    message = f"{len(failures)} of {len(hosts)} servers cannot be reached: {'; '.join(failures)}"
    return [CheckResult("ZooKeeper", WARNING if is_majority else PROBLEM, message, advice)]


def _check_identity(context: CheckContext, address: str, cluster: StoredCluster) -> Iterable[CheckResult]:
    own, node_id = context.meta_properties(), context.config.node_id
    if own is not None and own.cluster_id != cluster.cluster_id:
        stored = f"cluster {cluster.cluster_id} is" if cluster.cluster_id else "no cluster is"
        message = f"{context.data_dir} belongs to cluster {own.cluster_id}, but {stored} at {address}"
        advice = "Correct zookeeper.connect or --data-dir: the broker will not start."
        return [problem("cluster", message, advice)]
    registered = cluster.brokers.get(node_id)
    if registered is not None and not context.is_running:
        served = format_address(registered.host, registered.port)
        message = f"a broker with node.id={node_id} is registered, and serves {served}"
        advice = "Choose another node.id; if that broker was killed, its registration ends with its session."
        return [problem("cluster", message, advice)]
    if not cluster.cluster_id:
        return [ok("cluster", f"will be created at {address}")]
    brokers = ", ".join(map(str, sorted(cluster.brokers))) or "none"
    return [ok("cluster", f"{cluster.cluster_id}, with these brokers registered: {brokers}")]


def _check_history(context: CheckContext, address: str, cluster: StoredCluster) -> Iterable[CheckResult]:
    """Compare the metadata with what this broker has seen: ZooKeeper may have been restored from an older copy."""
    seen = read_seen_metadata(context.disk, context.data_dir, cluster.cluster_id)
    if cluster.recovering:
        message = (
            f"{count_text(cluster.recovering, 'partition')} without a leader: the metadata were older than the logs"
        )
        advice = "Start all brokers, so that the controller can compare their logs."
        return [problem("metadata", message, advice)]
    elif cluster.cluster_id and not context.is_running and needs_recovery(seen, cluster.changes):
        message = (
            f"{address} has the metadata of change {cluster.changes.number}, this broker has seen change "
            f"{seen.number}: ZooKeeper was restored from an older copy"
        )
        advice = "Restore the latest copy if there is one; else start all brokers, which recover from their logs."
        return [warning("metadata", message, advice)]
    return []


def _check_peers(context: CheckContext, cluster: StoredCluster) -> Iterator[CheckResult]:
    """Connect to both listeners of every other broker, from this machine."""
    reached = []
    for node_id, broker in sorted(cluster.brokers.items()):
        if node_id == context.config.node_id:
            continue
        errors, has_tls_error = [], False
        # The addresses of other listeners may be for other machines only.
        endpoint = broker.endpoint(context.config.inter_broker_listener_name)
        for listener, host, port, own in (
            ("clients", *(("", 0) if endpoint is None else (endpoint.host, endpoint.port)), endpoint),
            ("brokers", broker.inter_broker_host, broker.inter_broker_port, broker.inter_broker_endpoint),
        ):
            try:
                error = context.host.connect_error(host, port, _tls(context, own)) if port else None
            except KeyStoreError as failure:
                error = ssl.SSLError(str(failure))
            has_tls_error = has_tls_error or isinstance(error, ssl.SSLError)
            if error is not None:
                errors.append(f"its listener for {listener} at {format_address(host, port)}: {error.strerror or error}")
        if errors:
            message = f"broker {node_id} cannot be reached at {'; '.join(errors)}"
            advice = "Open the firewall, or advertise another address there: replication needs both directions."
            if has_tls_error:
                advice = "Replace the certificate, here or there: docs/security.md, Certificates."
            yield problem("other brokers", message, advice)
        else:
            reached.append(str(node_id))
    if reached:
        yield ok("other brokers", f"reached at both listeners: {', '.join(reached)}")


def _tls(context: CheckContext, endpoint: BrokerEndpoint | None) -> tuple[ssl.SSLContext, str] | None:
    """Return the TLS context with which this broker connects to another, and its host. Raises KeyStoreError."""
    settings = None if endpoint is None else context.config.listener_security(endpoint.listener).tls
    return None if endpoint is None or settings is None else (client_context(*settings.client_context), endpoint.host)


def check_racks(racks: Mapping[int, str | None]) -> Iterable[CheckResult]:
    without = [str(node_id) for node_id, rack in sorted(racks.items()) if not rack]
    if len(without) == len(racks):
        return []
    if without:
        message, advice = f"brokers without broker.rack: {', '.join(without)}", "Set it for all brokers, or for none."
        return [warning("racks", message, advice)]
    counts = Counter(racks.values())
    text = ", ".join(f"{rack} has {count_text(count, 'broker')}" for rack, count in sorted(counts.items(), key=str))
    if len(set(counts.values())) > 1:
        advice = "Use the same number of brokers in each rack: those in smaller racks get more replicas."
        return [warning("racks", text, advice)]
    else:
        return [ok("racks", text)]


def check_replication(config: Callable[[str], object], brokers: int) -> Iterator[CheckResult]:
    """Check what new topics get. `config` returns a value of a broker. `brokers`: the number of those registered."""
    factor, min_isr = (int(str(config(name))) for name in (DEFAULT_FACTOR, MIN_ISR))
    name, text = "replication", f"{DEFAULT_FACTOR}={factor}, {MIN_ISR}={min_isr}"
    too_high = {key: value for key in INTERNAL_FACTORS if (value := int(str(config(key)))) > brokers}
    if too_high:
        message = ", ".join(f"{key}={value}" for key, value in too_high.items())
        advice = f"Groups and transactions start to work when {max(too_high.values())} brokers are registered."
        yield warning(name, f"{message}, but {count_text(brokers, 'broker')} registered", advice)
    if factor > brokers:
        advice = f"New topics need {factor} brokers: start more, or lower the factor."
        yield warning(name, f"{text}, but {count_text(brokers, 'broker')} registered", advice)
    elif factor == 1 and brokers > 1:
        advice = "New topics have one replica, and stop while its broker is away: set 3, and min.insync.replicas=2."
        yield warning(name, text, advice)
    elif min_isr >= factor > 1:
        advice = "Writes with acks=all stop while one replica is away: use a factor above min.insync.replicas."
        yield warning(name, text, advice)
    elif factor > 1 and min_isr == 1:
        advice = "If all followers leave the ISR, acks=all waits for the leader only: set min.insync.replicas=2."
        yield warning(name, text, advice)
    else:
        yield ok(name, text)


def _check_configs(context: CheckContext, cluster: StoredCluster) -> Iterator[CheckResult]:
    """Compare the effective configs of all brokers that respond."""
    found = {
        node_id: configs
        for node_id, broker in sorted(cluster.brokers.items())
        if (configs := context.host.broker_configs(format_address(broker.host, broker.port), node_id)) is not None
    }
    return compare_configs(found)


def compare_configs(by_broker: Mapping[int, Mapping[str, str | None]]) -> Iterator[CheckResult]:
    """Report the configs that differ between brokers."""
    values: dict[str, dict[str | None, list[int]]] = {}
    for node_id, configs in by_broker.items():
        for name, value in configs.items():
            values.setdefault(name, {}).setdefault(value, []).append(node_id)
    differing = 0
    for name, by_value in sorted(values.items()):
        if len(by_value) > 1:
            differing += 1
            found = "; ".join(f"{value} on {', '.join(map(str, ids))}" for value, ids in by_value.items())
            advice = "Set the same value on all brokers: the controller elects leaders by its own value."
            yield warning("configs", f"{name} differs: {found}", advice)
    if len(by_broker) > 1 and not differing:
        yield ok("configs", f"the same on {count_text(len(by_broker), 'broker')}")
