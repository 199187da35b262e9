"""The clients that report metrics, and the checks of their requests (KIP-714).

A client asks which metrics it shall push, and then pushes them once in each interval. The ids, the intervals and the
error codes are Kafka's. All of it is lost with the process: the next push of a client gets UNKNOWN_SUBSCRIPTION_ID, and
it asks again.
"""

from dataclasses import dataclass, field
from uuid import UUID

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.config.values import ConfigError
from kbroker.metadata.image import MetadataDelta, MetadataImage
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.runtime.turns import paced
from kbroker.telemetry.reported_metrics import Samples
from kbroker.telemetry.subscriptions import ClientAttributes, ClientSubscription, MetricsSubscription, subscription_of
from protocol.errors import ErrorCode
from protocol.messages.k71_client_telemetry import PushTelemetryRequest
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from protocol.schema.primitives import ZERO_UUID

log = EventLogger("kbroker.telemetry")

# As in Kafka: beyond this number the least recently used client is forgotten.
MAX_INSTANCES = 16_384
MIN_EXPIRY_MS = 60_000
EXPIRY_INTERVALS = 3
EXPIRY_CHECK_MS = 10_000
# A consumer of a thousand partitions has 8,000. A page with as many as all clients may have takes about 30 MB.
MAX_SAMPLES_OF_CLIENT, MAX_SAMPLES = 10_000, 100_000
# In the order of preference.
COMPRESSION_TYPES = (ZSTD, LZ4, GZIP, SNAPPY)
# Of ids that Kafka keeps for itself.
RESERVED_IDS = (ZERO_UUID, bytes(15) + b"\1")
ASK_AGAIN_ERRORS = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
# Before any time of the monotonic clock.
NEVER_MS = -(1 << 62)


@dataclass(slots=True)
class ClientInstance:
    """One client. All times are those of the monotonic clock, in milliseconds.

    `samples`: what it has pushed last. `is_terminating`: that was its last push. `may_ask_early`: its last push had an
    error after which it has to ask for its subscription.
    """

    client: ClientAttributes
    subscription: ClientSubscription
    version: int
    last_get_ms: int = NEVER_MS
    last_push_ms: int = NEVER_MS
    is_terminating: bool = False
    may_ask_early: bool = False
    expires_ms: int = 0
    samples: Samples = field(default_factory=dict)


class ClientMetricsManager:
    """The subscriptions of the cluster, and the clients of this broker.

    `cut_pushes`: the number of pushes with more samples than are kept.
    """

    def __init__(self, environment: Environment, image: MetadataImage) -> None:
        self.instances: dict[bytes, ClientInstance] = {}
        self.cut_pushes = 0
        self._environment = environment
        self._image = image
        self._expiry = PeriodicTask(
            environment, "expiry of client instances", lambda: EXPIRY_CHECK_MS, self._expire, lambda: self.instances
        )
        self._sample_count = 0
        # Raised by each change of the subscriptions.
        self._version = 0
        self._subscriptions: list[MetricsSubscription] = []
        self._load_subscriptions()

    def on_delta(self, delta: MetadataDelta) -> None:
        """Follow the metadata: a client gets a changed subscription with its next request."""
        if any(resource.type == ConfigResourceType.CLIENT_METRICS for resource in delta.configs):
            self._load_subscriptions()

    def _load_subscriptions(self) -> None:
        self._version += 1
        self._subscriptions.clear()
        for name in self._image.resources_with_overrides(ConfigResourceType.CLIENT_METRICS):
            try:
                configs = self._image.overrides(ConfigResourceType.CLIENT_METRICS, name)
                self._subscriptions.append(MetricsSubscription(configs))
            except (ConfigError, KafkaError) as error:
                # An earlier version has accepted its regular expression.
                log.warning("client metrics subscription ignored", subscription=name, reason=error)

    def new_instance_id(self) -> bytes:
        """Return a random id that no client has."""
        random = self._environment.random
        while (instance_id := UUID(bytes=random.randbytes(16), version=4).bytes) in self.instances:
            pass
        return instance_id

    def check_get(self, instance_id: bytes, client: ClientAttributes, now_ms: int) -> ClientInstance:
        """Return the client that asks for its subscription. Raises KafkaError if it asks too early."""
        instance = self._instance(instance_id, client, now_ms)
        if now_ms - max(instance.last_get_ms, instance.last_push_ms) >= instance.subscription.push_interval_ms:
            instance.last_get_ms = now_ms
        elif not instance.may_ask_early:
            raise _too_early(instance)
        instance.may_ask_early = False
        return instance

    def check_push(self, client: ClientAttributes, request: PushTelemetryRequest, now_ms: int) -> ClientInstance:
        """Return the client that pushes its metrics. Raises KafkaError."""
        if request.client_instance_id in RESERVED_IDS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The client instance id is not valid")
        instance = self._instance(request.client_instance_id, client, now_ms)
        instance.may_ask_early = False
        try:
            _check_push(instance, request, now_ms)
        except KafkaError as error:
            instance.may_ask_early = error.code in ASK_AGAIN_ERRORS
            raise
        finally:
            instance.is_terminating = request.terminating
        return instance

    def _instance(self, instance_id: bytes, client: ClientAttributes, now_ms: int) -> ClientInstance:
        """Return a client. It starts anew on another connection, and when the subscriptions have changed."""
        instance = self.instances.pop(instance_id, None)
        if instance is None or instance.client != client or instance.version < self._version:
            subscription = subscription_of(instance_id, client, self._subscriptions)
            samples = instance.samples if instance is not None else {}
            instance = ClientInstance(client, subscription, self._version, samples=samples)
        # The most recently used client is the last one.
        self.instances[instance_id] = instance
        instance.expires_ms = now_ms + max(MIN_EXPIRY_MS, EXPIRY_INTERVALS * instance.subscription.push_interval_ms)
        if len(self.instances) > MAX_INSTANCES:
            self._forget(next(iter(self.instances)))
        self._expiry.schedule()
        return instance

    # What clients have pushed.

    def free_samples(self, instance: ClientInstance) -> int:
        """Return how many samples the client may have. Those of pushes that are being read are not counted."""
        return min(MAX_SAMPLES_OF_CLIENT, MAX_SAMPLES - self._sample_count + len(instance.samples))

    def replace_samples(self, instance_id: bytes, instance: ClientInstance, samples: Samples) -> None:
        # Another request may have replaced it while this one was served in turns.
        if self.instances.get(instance_id) is instance:
            self._sample_count += len(samples) - len(instance.samples)
            instance.samples = samples

    async def _expire(self) -> None:
        """Forget the clients that have sent nothing for three intervals, and at least a minute."""
        now_ms = self._environment.clock.mono_ms()
        for instance_id in paced([*self.instances]):
            instance = self.instances.get(instance_id)
            if instance is not None and instance.expires_ms <= now_ms:
                self._forget(instance_id)

    async def stop(self) -> None:
        await self._expiry.stop()

    def _forget(self, instance_id: bytes) -> None:
        self._sample_count -= len(self.instances.pop(instance_id).samples)


def _check_push(instance: ClientInstance, request: PushTelemetryRequest, now_ms: int) -> None:
    """Make the checks in Kafka's order. The caller checks the size of the metrics afterwards. Raises KafkaError."""
    if instance.is_terminating:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The client has pushed its last metrics before")
    # The first push after a request for the subscription may come at any time, and so may the last one.
    if (
        instance.last_get_ms > instance.last_push_ms
        or now_ms - instance.last_push_ms >= instance.subscription.push_interval_ms
    ):
        instance.last_push_ms = now_ms
    elif not request.terminating:
        raise _too_early(instance)
    if request.subscription_id != instance.subscription.id:
        raise KafkaError(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "The subscription of the client has another id")
    if request.compression_type not in (NONE, *COMPRESSION_TYPES):
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def _too_early(instance: ClientInstance) -> KafkaError:
    message = f"Clients may send one request in each {instance.subscription.push_interval_ms} ms"
    return KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
