"""Who this broker is to other brokers."""

from dataclasses import dataclass


@dataclass(slots=True)
class BrokerIdentity:
    """`secret`: the bytes that all brokers of the cluster know, and nobody else.

    `broker_epoch` is set at each registration. Connections are bound to it: those of a former epoch are not used.
    """

    cluster_id: str
    secret: bytes
    broker_id: int
    broker_epoch: int = -1
