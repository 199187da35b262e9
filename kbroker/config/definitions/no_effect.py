"""The reasons why a config that kbroker accepts has no effect: values of ConfigKey.no_effect.

A config that takes effect has None. docs/configuration.md lists the others in the order of this class.
"""

from enum import StrEnum


class NoEffect(StrEnum):
    """Each text completes the sentence "<config> is accepted, but has no effect: ...".

    NO_PROTECTION is that of configs whose user relies on a protection: any value but the default is refused. Those with
    NO_SECURITY only say how such a protection works.
    """

    NO_QUOTAS = "kbroker has no client quotas yet"
    JAVA_CLASS = "kbroker does not load Java classes"
    NO_PROTECTION = "kbroker has no TLS, SASL, authorization or delegation tokens yet"
    NO_SECURITY = "it is part of TLS, SASL or delegation tokens, which kbroker does not have yet"
    NO_TIERED_STORAGE = "kbroker has no tiered storage"
    CLASSIC_GROUPS_ONLY = "kbroker serves groups of the classic protocol only"
    NO_TWO_PHASE_COMMIT = "no client can request it: that version of InitProducerId is not stable yet (KIP-939)"
    NO_QUORUM = "kbroker has no metadata quorum"
    ONE_FETCHER = "one fetcher per leader fetches all partitions, without threads"
    PROMETHEUS_METRICS = "kbroker's metrics are Prometheus counters, without samples or reporters"
    NO_CLIENT_TELEMETRY = "kbroker does not collect client metrics (KIP-714)"
    EVENT_LOOP = "one event loop serves all requests, without a pool of threads"
    REQUEST_TIMEOUT = "the timeout of a request to another broker, such as request.timeout.ms, includes connecting"
    OWN_INTER_BROKER_LISTENER = "brokers use a listener of their own: kbroker.inter.broker.listener"
    ONE_LOG_DIRECTORY = "a broker has one log directory"
    SYSTEM_BUFFERS = "the system adapts the buffers of connections between brokers"
    PURGATORY_NOT_PURGED = "a delayed request leaves the purgatory as soon as it completes"
    NO_REQUEST_QUEUE = "requests are handled as they are read, without a queue"
    NO_PREALLOCATION = "segments grow as they are written"
    LOG_START_WRITTEN_AT_ONCE = "log start offsets are checkpointed whenever they change"
    NO_CACHED_BUFFER = "the coordinators keep no buffer between two writes"
