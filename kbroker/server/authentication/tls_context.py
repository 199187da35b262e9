"""The TLS contexts of a listener: made of its key store and trust store, and replaced when they change.

Connections keep the context with which they began.
"""

from __future__ import annotations

import os
import ssl
from typing import TYPE_CHECKING

from kbroker.client.key_stores import KeyStoreError, check_handshake, client_context, server_context
from kbroker.config.values import ConfigError
from kbroker.runtime.event_log import EventLogger
from kbroker.server.authentication.distinguished_name import PrincipalMapper, subject

if TYPE_CHECKING:
    from kbroker.config.broker.security import TlsSettings

log = EventLogger("kbroker.server")


class TlsContext:
    """`context`: that of new connections, once it is configured. `client`: that of connections to other brokers."""

    context: ssl.SSLContext
    client: ssl.SSLContext

    def __init__(self, broker_host: str | None = None) -> None:
        """`broker_host`: this broker's host in certificates. Without it there is no `client`."""
        self._broker_host = broker_host
        self._settings: TlsSettings | None = None
        self._files: tuple[object, ...] = ()
        self._mapper: PrincipalMapper

    def configure(self, settings: TlsSettings) -> None:
        """Apply settings. The first ones raise ConfigError if they are wrong; after later ones, the former stay."""
        files = _files(settings)
        if settings == self._settings and files == self._files:
            return
        is_first, self._settings, self._files = self._settings is None, settings, files
        try:
            mapper = PrincipalMapper(f"{settings.prefix}ssl.principal.mapping.rules", settings.principal_rules)
            context = server_context(*settings.context)
            if self._broker_host is not None:
                client = client_context(*settings.client_context)
                check_handshake(context, client, self._broker_host, settings.key_store.config)
                self.client = client
            self.context, self._mapper = context, mapper
        except (KeyStoreError, ConfigError) as error:
            if is_first:
                raise ConfigError(str(error)) from None
            log.error("certificates not reloaded", listener=settings.prefix, reason=str(error))
        else:
            if not is_first:
                log.info("certificates reloaded", listener=settings.prefix)

    def reload(self) -> None:
        """Read the files again if they have changed."""
        if self._settings is not None:
            self.configure(self._settings)

    def user(self, certificate: bytes) -> str | None:
        """Return the user of a client's certificate; None if no rule applies."""
        return self._mapper.user(subject(certificate))


def _files(settings: TlsSettings) -> tuple[object, ...]:
    """Return what changes when a file is replaced or written."""
    found: list[object] = []
    for store in (settings.key_store, settings.trust_store):
        if store.location is not None:
            try:
                status = os.stat(store.location)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
