"""Serves /metrics, /healthz and /livez of one broker, and measures the delay of its event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kbroker.api.context import Services
from kbroker.common import format_address
from kbroker.config.validators import parse_host_port
from kbroker.exporter.collect import MetricSources, collect_metrics
from kbroker.exporter.families import CONTENT_TYPE, MetricsPage
from kbroker.exporter.http_server import HttpResponse, HttpServer, text_response
from kbroker.exporter.replication import ElectionCounter
from kbroker.metadata.image import WriteHealth
from kbroker.queues.queue_extensions import QueueExtensions
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
from kbroker.replica.logs.disk_health import LARGE_PROBE_BYTES
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.metrics import Histogram
from kbroker.server.interbroker.inter_broker_server import InterBrokerServer
from kbroker.server.socket_server import SocketServer

if TYPE_CHECKING:
    from kbroker.exporter.otlp import OtlpExporter

log = EventLogger("kbroker.exporter")

# A scrape yields to other callbacks after this time.
STEP_NS = 1_000_000
TICK_S = 0.1


class LoopDelay:
    """Measures how late a periodic timer fires."""

    def __init__(self, environment: Environment) -> None:
        self.histogram = Histogram()
        self._environment = environment
        self._due_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_ns = self._environment.clock.mono_ns() + int(TICK_S * 1e9)
        self._timer = self._environment.loop.call_later(TICK_S, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self.histogram.observe(max(0, self._environment.clock.mono_ns() - self._due_ns))
        self.start()


class Exporter:
    """`address`: the address of the HTTP server, set by `start`."""

    address = ""

    def __init__(
        self,
        environment: Environment,
        services: Services,
        queues: QueueExtensions,
        server: SocketServer,
        inter_broker: InterBrokerServer | None = None,
        fetchers: ReplicaFetcherManager | None = None,
    ) -> None:
        # A broker without metrics starts without this import.
        from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

        self._environment = environment
        self._clock = environment.clock
        self._delay = LoopDelay(environment)
        # To be called with the changes of the metadata image.
        self.elections = ElectionCounter(services.controller)
        self._sources = MetricSources(
            services, queues, server, inter_broker, fetchers, self.elections, self._delay.histogram
        )
        self._errors = server.context.errors
        self._write_health = services.replicas.write_health
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        handlers = {"/metrics": self._metrics, "/healthz": self._health, "/livez": self._live}
        self._http = HttpServer(environment.loop, handlers, self._on_error)
        # The scrape in progress. Its page is the response to all requests that arrive meanwhile.
        self._scrape: asyncio.Task[list[bytes]] | None = None
        self._otlp: OtlpExporter | None = None

    async def start(self, listener: str, sends_otlp: bool) -> None:
        """Start the HTTP server. `listener`: the value of kbroker.metrics.listener; empty for none.

        `sends_otlp`: the value of kbroker.metrics.otlp. Raises OSError, ConfigError.
        """
        self._delay.start()
        if sends_otlp:
            from kbroker.exporter.otlp import OtlpExporter

            self._otlp = OtlpExporter(self._environment, self._sources.services.node_id, self.scrape_page)
        if not listener:
            return
        address = parse_host_port(listener)
        assert address is not None
        host, port = address
        port = await self._http.start(host or None, port)
        self.address = format_address(host or "0.0.0.0", port)
        log.info("metrics are served", address=self.address)

    async def stop(self) -> None:
        self._delay.stop()
        if self._otlp is not None:
            await self._otlp.stop()
        await self._http.stop()
        if self._scrape is not None:
            self._scrape.cancel()
            await asyncio.gather(self._scrape, return_exceptions=True)

    async def _metrics(self) -> HttpResponse:
        if self._scrape is None:
            self._scrape = self._environment.loop.create_task(self.scrape_page())
            self._scrape.add_done_callback(self._on_scraped)
        try:
            return HttpResponse(200, CONTENT_TYPE, await asyncio.shield(self._scrape))
        except Exception as error:
            log.failure("scrape failed", error)
            return text_response(500)

    def _on_scraped(self, _: object) -> None:
        self._scrape = None

    async def scrape_page(self) -> list[bytes]:
        """Return the page in parts, and serve other callbacks meanwhile."""
        from prometheus_client import generate_latest

        page = MetricsPage()
        began_ns = step_ns = self._clock.mono_ns()
        for blocking in collect_metrics(self._sources, page):
            if blocking is not None:
                await self._environment.offload(blocking)
            elif self._clock.mono_ns() - step_ns > STEP_NS:
                await asyncio.sleep(0)
                step_ns = self._clock.mono_ns()
        page.add("kbroker_scrape_seconds", (self._clock.mono_ns() - began_ns) / 1e9)
        parts = []
        for part in page.parts():
            parts.append(part)
            if self._clock.mono_ns() - step_ns > STEP_NS:
                await asyncio.sleep(0)
                step_ns = self._clock.mono_ns()
        # In a thread: counting ten thousand open files takes a long time.
        parts.append(await self._environment.offload(generate_latest, self._registry))
        return parts

    async def _health(self) -> HttpResponse:
        """Respond to /healthz, whether the broker is ready: 503 if it cannot write to its disk, or has logs offline.

        A stopping broker has no listener. The disk of a lone broker is probed here if it is full, since it is otherwise
        probed only after a failed append.
        """
        environment, logs = self._environment, self._sources.services.replicas.logs
        _, free = await environment.offload(environment.disk.usage, logs.path)
        if free < LARGE_PROBE_BYTES:
            await self._write_health.check()
        if self._write_health.health is WriteHealth.FAILING:
            return text_response(503, f"the broker cannot write to its disk: {self._write_health.error}")
        replicas = self._sources.services.replicas
        offline = sum(partition.log.health.offline is not None for partition in replicas.partitions.values())
        offline += len(replicas.maintenance.unopened)
        if offline:
            return text_response(503, f"logs offline: {offline}; the broker's log says why")
        recovering = self._sources.services.metadata.count_recovering()
        note = f"; {recovering} partitions have no leader: the metadata were restored from an older copy"
        return text_response(200, "ok" + (note if recovering else ""))

    async def _live(self) -> HttpResponse:
        """Respond to /livez, whether the process should go on: the response shows that the event loop runs."""
        return text_response(200, "ok")

    def _on_error(self, peer: str, status: int) -> None:
        self._errors.report_close(peer, None, None, "metrics request refused", {"status": status})
