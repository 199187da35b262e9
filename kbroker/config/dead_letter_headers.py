"""The headers of dead letters: those of KIP-1191, and two of Spring for Apache Kafka.

Brokers write them for share groups, and consumers with the package kbroker.retry for other groups. Values are text in
UTF-8, unless stated otherwise.
"""

TOPIC = "__dlq.errors.topic"
PARTITION = "__dlq.errors.partition"
OFFSET = "__dlq.errors.offset"
GROUP = "__dlq.errors.group"
DELIVERY_COUNT = "__dlq.errors.delivery.count"
MESSAGE = "__dlq.errors.message"
ERROR_CLASS = "kafka_dlt-exception-fqcn"
# Milliseconds since the epoch, as 8 bytes, big-endian.
ORIGINAL_TIMESTAMP = "kafka_dlt-original-timestamp"
# In a dead letter that is only a pointer to the record (by its topic, partition and offset): the parts of the record
# that it lacks, separated by commas (key, value, headers).
OMITTED = "kbroker.dlq.omitted"
# The headers of one delivery. Each failure replaces them.
FAILURE_HEADERS = frozenset({TOPIC, PARTITION, OFFSET, GROUP, DELIVERY_COUNT, MESSAGE, ERROR_CLASS, OMITTED})
