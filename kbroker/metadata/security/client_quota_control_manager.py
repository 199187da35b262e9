"""Alters the client quotas of the cluster (KIP-546): an entity with quotas has one node."""

from collections.abc import Mapping, Sequence

from kbroker.common import KafkaError
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.metadata.control_manager import ControlManager
from kbroker.metadata.store import znodes
from kbroker.quotas.entities import QuotaEntity, Quotas, altered_quotas
from kbroker.runtime.turns import yield_if_due


class ClientQuotaControlManager(ControlManager):
    async def alter(
        self, alterations: Mapping[QuotaEntity, Sequence[tuple[str, float | None]]], validate_only: bool
    ) -> dict[QuotaEntity, KafkaError]:
        """Store the valid alterations, unless `validate_only`. Returns the errors of the others. Raises KafkaError."""
        errors: dict[QuotaEntity, KafkaError] = {}
        async with self._lock:
            await self._writer.prepare()
            current = self._image.client_quotas
            ops: list[Op] = []
            for entity, alteration in alterations.items():
                try:
                    former = current.get(entity, {})
                    altered = altered_quotas(former, entity, alteration)
                    if altered != former:
                        ops.append(_op(entity, former, altered))
                except KafkaError as error:
                    errors[entity] = error
                yield_if_due()
            if ops and not validate_only:
                if not current:
                    await self._ensure_directory(znodes.QUOTAS)
                await self._writer.commit_all(ops)
        await self._loader.wait_if_alone()
        return errors


def _op(entity: QuotaEntity, former: Quotas, altered: Quotas) -> Op:
    path, data = znodes.quotas_path(entity), znodes.encode(altered)
    return Delete(path) if not altered else Set(path, data) if former else Create(path, data)
