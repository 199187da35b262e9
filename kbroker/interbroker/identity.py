"""The identity of this broker in handshakes with other brokers."""

from dataclasses import dataclass


@dataclass(slots=True)
class BrokerIdentity:
    """`secret`: bytes that only the brokers of this cluster know.

    `broker_epoch` is set at each registration. Connections are bound to it: those of a former epoch are not used.
    """

    cluster_id: str
    secret: bytes
    broker_id: int
    broker_epoch: int = -1
