"""Requests as operations of the embedded service: each returns the body of its response."""

from __future__ import annotations

from kbroker.metadata.store.coordination import CoordinationError, SessionExpired, Unavailable, Watch
from kbroker.metadata.store.embedded import EmbeddedStore
from kbroker.metadata.store.embedded_session import EmbeddedSession, PendingCommit, StoreOperation
from kbroker.metadata.store.zookeeper_server import messages
from kbroker.metadata.store.zookeeper_server.jute import JuteReader, encode_buffer, encode_string
from kbroker.metadata.store.zookeeper_server.messages import RequestType


class RequestOperations:
    """The operations of one connection. `watch` is called with the events of its watches."""

    def __init__(self, store: EmbeddedStore, session: EmbeddedSession, watch: Watch) -> None:
        self._store = store
        self._session = session
        self._watch = watch

    def operation(self, kind: int, reader: JuteReader) -> StoreOperation:
        """Decode a request. Raises MalformedRequest, RequestRefused."""
        match kind:
            case RequestType.GET_DATA:
                return self._get_data(reader)
            case RequestType.EXISTS:
                return self._exists(reader)
            case RequestType.GET_CHILDREN | RequestType.GET_CHILDREN2:
                return self._get_children(reader, with_stat=kind == RequestType.GET_CHILDREN2)
            case RequestType.MULTI:
                return self._multi(reader)
            case RequestType.SYNC:
                path = reader.read_string()
                return lambda commit: encode_string(path)
            case RequestType.CHECK:
                raise messages.RequestRefused(messages.ZooKeeperError.UNIMPLEMENTED)
            case _:
                return self._write(kind, reader)

    def _get_data(self, reader: JuteReader) -> StoreOperation:
        path, watches = messages.decode_path(reader), reader.read_boolean()

        def operation(commit: PendingCommit) -> bytes:
            node, children = self._store.tree.get(path), len(self._store.tree.children(path))
            self._set_watch(commit, path, watches)
            return encode_buffer(node.data) + messages.encode_node_stat(node, children)

        return operation

    def _exists(self, reader: JuteReader) -> StoreOperation:
        path, watches = messages.decode_path(reader), reader.read_boolean()

        def operation(commit: PendingCommit) -> bytes:
            # Before the node is read: the watch is set if there is no node, too.
            self._set_watch(commit, path, watches)
            node, children = self._store.tree.get(path), len(self._store.tree.children(path))
            return messages.encode_node_stat(node, children)

        return operation

    def _get_children(self, reader: JuteReader, *, with_stat: bool) -> StoreOperation:
        path, watches = messages.decode_path(reader), reader.read_boolean()

        def operation(commit: PendingCommit) -> bytes:
            node, names = self._store.tree.get(path), self._store.tree.children(path)
            self._set_watch(commit, path, watches, children=True)
            stat = messages.encode_node_stat(node, len(names)) if with_stat else b""
            return messages.encode_names(names) + stat

        return operation

    def _multi(self, reader: JuteReader) -> StoreOperation:
        parts = messages.decode_multi(reader)
        ops = [op for _, op in parts]

        def operation(commit: PendingCommit) -> bytes:
            try:
                nodes = self._store.apply(commit, ops, self._session.session_id)
            except (SessionExpired, Unavailable):
                raise
            except CoordinationError as error:
                return messages.encode_multi_error(len(parts), error)
            return messages.encode_multi_results(parts, nodes)

        return operation

    def _write(self, kind: int, reader: JuteReader) -> StoreOperation:
        op = messages.decode_op(kind, reader)

        def operation(commit: PendingCommit) -> bytes:
            (node,) = self._store.apply(commit, [op], self._session.session_id)
            return messages.encode_result(kind, op, node)

        return operation

    def _set_watch(self, commit: PendingCommit, path: str, watches: bool, *, children: bool = False) -> None:
        self._store.watch(commit, self._session, path, self._watch if watches else None, children=children)
