"""The intended differences between the responses of kbroker and Apache Kafka 4.4.0 to users with few rights."""

from tests.compat.wire.differences import Difference

DIFFERENCES: tuple[Difference, ...] = ()
