"""Which Client a call belongs to: one for each connection."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from batchedapi_core.batching import Client

MOST_PEERS: Final = 4096
"""Connections remembered; a forgotten one that comes back counts as new, which costs a batch some
of its fill and nobody an answer."""


class Peers:
    """Clients by the address of their connection.

    gRPC does not say when a connection opens or closes: it is new with its first call, and those
    that were silent longest are forgotten.
    """

    def __init__(
        self,
        connected: Callable[[], None],
        disconnected: Callable[[Client], None],
        most: int = MOST_PEERS,
    ) -> None:
        """`connected` is called for each new connection, `disconnected` for each forgotten one."""
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._connected = connected
        self._disconnected = disconnected
        self._most = most

    def client(self, peer: str) -> Client:
        """The Client of the connection that gRPC calls `peer`."""
        client = self._clients.get(peer)
        if client is not None:
            self._clients.move_to_end(peer)
            return client
        if len(self._clients) >= self._most:
            _, silent = self._clients.popitem(last=False)
            self._disconnected(silent)
        self._connected()
        client = self._clients[peer] = Client()
        return client
