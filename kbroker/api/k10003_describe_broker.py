"""DescribeBroker (key 10003), version 0: the broker process that responds. Kafka has no such API.

- The broker epoch is that of the metadata image. It is -1 while the broker is fenced, or not registered.
- `recovering_partitions`: how many partitions of the cluster have no leader until the logs of their replicas are
  compared, because the metadata were older than the logs (kbroker/metadata/recovery).
- The start time is the wall clock of the broker's machine. It distinguishes the processes of a broker. A new epoch does
  not: a broker whose session has expired registers again in the same process.
- The response also has the brokers that cannot write to their disks, and those that could not until recently, as far as
  the responding broker knows.
- `failed_handshakes`: the brokers that run, but to which the responding broker cannot connect, because of a certificate
  or the cluster's secret.
- ApiVersions does not list it, so only kbroker's command line sends it. Brokers do not forward it.
"""

from collections.abc import Mapping

from kbroker import __version__
from kbroker.api.context import RequestContext, Services
from kbroker.metadata.image import WriteHealth
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse, FailedHandshake


def handle(services: Services, context: RequestContext, request: DescribeBrokerRequest) -> DescribeBrokerResponse:
    image, node_id = services.metadata, services.node_id
    broker = image.brokers.get(node_id)
    # The controller of other brokers may not know of this one's disk yet, and a lone broker reports it to nobody.
    health = {id: image.write_health(id) for id in image.brokers} | {node_id: services.replicas.write_health.health}
    failed = {} if services.peers is None else services.peers.failed_handshakes()
    return DescribeBrokerResponse(
        broker_id=services.node_id,
        broker_epoch=-1 if broker is None else broker.epoch,
        started_ms=services.started_ms,
        software_version=__version__,
        failing_brokers=_with(WriteHealth.FAILING, health),
        brokers_on_probation=_with(WriteHealth.PROBATION, health),
        recovering_partitions=services.metadata.count_recovering(),
        failed_handshakes=[FailedHandshake(broker_id=id, reason=reason) for id, reason in sorted(failed.items())],
    )


def _with(health: WriteHealth, brokers: Mapping[int, WriteHealth]) -> list[int]:
    return sorted(broker_id for broker_id, found in brokers.items() if found is health)
