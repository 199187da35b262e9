"""Adds what clients have reported (KIP-714) to the page."""

from collections.abc import Iterator

from kbroker.api.context import Services
from kbroker.exporter.families import MetricsPage, labels
from kbroker.exporter.replication import ITEMS_PER_STEP
from kbroker.telemetry.subscriptions import CLIENT_LABELS


def collect_client_metrics(services: Services, page: MetricsPage) -> Iterator[None]:
    """Add the last samples of each client, with its labels and the client's."""
    manager = services.client_metrics
    now_ms = services.environment.clock.mono_ms()
    live = [instance for instance in manager.instances.values() if instance.expires_ms > now_ms]
    page.add("kbroker_client_instances", len(live))
    page.add("kbroker_client_pushes_cut_total", manager.cut_pushes)
    number = 0
    for instance in live:
        own = dict(zip(CLIENT_LABELS, instance.client, strict=False))
        rendered: dict[tuple[tuple[str, str], ...], str] = {}
        for key, value in instance.samples.items():
            number += 1
            if number % ITEMS_PER_STEP == 0:
                yield
            labelled = rendered.get(key.labels)
            if labelled is None:
                labelled = rendered[key.labels] = labels(**own, **dict(key.labels))
            page.add_reported(key.kind, key.name, value, labelled)
    yield
