"""What the page about all APIs asks for: a line of each, and the newest pages of one's replicas.

Nothing is kept for it: lines are of the status, and replicas are read while somebody looks.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from batchedapi_operator.cluster import JsonObject, ObjectKey
from batchedapi_operator.reconcile.views import PodView
from batchedapi_operator.store import Store

MOST_APIS: Final = 200
"""Lines; whoever has more names one in the address, or uses kubectl."""
MOST_REPLICAS: Final = 32
"""Read for one look of one person; figures are of these, and the page says how many are not."""


class ReadsPages(Protocol):
    """Where the pages of replicas come from."""

    async def whole_pages(self, pods: Sequence[PodView]) -> list[str | None]:
        """The text of each, in order; None: it was not had."""


class Fleet:
    """Reads the store that the watches fill."""

    def __init__(self, store: Store, replicas: ReadsPages) -> None:
        self._store = store
        self._replicas = replicas

    async def look(self, chosen: str) -> JsonObject:
        """All APIs, and the replicas of the one that is `chosen`, as namespace/name.

        Returns:
            `apis`: a line of each, by name; `more`: those that are left out. Where the chosen one
            is known, `pages`: texts by pod, and `missing`: its replicas that are not among them.
        """
        namespace, _, name = chosen.partition("/")
        key = ObjectKey(namespace, name)
        known = sorted(self._store.apis(), key=lambda one: (one != key, str(one)))
        shown = sorted(known[:MOST_APIS], key=str)
        lines = {"apis": [self._line(one) for one in shown], "more": len(known) - len(shown)}
        if self._store.api(key) is None:
            return lines
        running = [pod for pod in self._store.owned_pods(key) if pod.ip and not pod.gone]
        asked = running[:MOST_REPLICAS]
        texts = await self._replicas.whole_pages(asked)
        pages = {pod.name: text for pod, text in zip(asked, texts, strict=True) if text is not None}
        return {**lines, "pages": pages, "missing": len(running) - len(pages)}

    def _line(self, key: ObjectKey) -> JsonObject:
        view = self._store.api(key)
        status: dict[str, Any] = {} if view is None else view.status
        batching = status.get("batching") or {}
        decision = (status.get("autoscaling") or {}).get("lastDecision") or {}
        why = [decision.get("text"), status.get("message"), batching.get("advice")]
        return {
            "api": str(key),
            "phase": status.get("phase"),
            "ready": status.get("readyReplicas"),
            "wanted": status.get("desiredReplicas"),
            "why": "; ".join(text for text in why if text),
        }
