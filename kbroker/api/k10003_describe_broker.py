"""DescribeBroker (key 10003), version 0: the broker process that responds. Kafka has no such API.

- The broker epoch is that of the metadata image. It is -1 while the broker is fenced, or not registered.
- The start time is the wall clock of the broker's machine. It distinguishes the processes of a broker. A new epoch does
  not: a broker whose session has expired registers again in the same process.
- ApiVersions does not list it, so only kbroker's command line sends it. Brokers do not forward it.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from kbroker.api.context import RequestContext, Services
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse

UNKNOWN_VERSION = "unknown"


def handle(services: Services, context: RequestContext, request: DescribeBrokerRequest) -> DescribeBrokerResponse:
    broker = services.metadata.brokers.get(services.node_id)
    return DescribeBrokerResponse(
        broker_id=services.node_id,
        broker_epoch=-1 if broker is None else broker.epoch,
        started_ms=services.started_ms,
        software_version=software_version(),
    )


@cache
def software_version() -> str:
    """Return the version of kbroker, UNKNOWN_VERSION if it was not installed as a package."""
    try:
        return version("kbroker")
    except PackageNotFoundError:
        return UNKNOWN_VERSION
