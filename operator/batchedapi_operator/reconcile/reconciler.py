"""One API: observe, plan, execute."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from batchedapi_core.canary import Judged
from batchedapi_core.manifest import SPREAD, Pod
from batchedapi_operator.cluster import (
    BATCHED_APIS,
    JsonObject,
    ObjectKey,
    rfc3339,
    section,
    utc_now,
)
from batchedapi_operator.errors import (
    ApplyError,
    InvalidSpecError,
    NamespaceGoingError,
    NotOwnedError,
    RefusedError,
)
from batchedapi_operator.kube import Kube
from batchedapi_operator.outbox import RECONCILER_STATUS, STATE_EVENTS, News, Outbox
from batchedapi_operator.reconcile.conditions import (
    NewCondition,
    hindrance_of,
    in_our_words,
    refusal_reason,
)
from batchedapi_operator.reconcile.execute import PlanExecutor
from batchedapi_operator.reconcile.observe import observe
from batchedapi_operator.reconcile.ownership import deletion
from batchedapi_operator.reconcile.plan import NO_POLICIES, Plan, plan
from batchedapi_operator.reconcile.status import hindered_status, news_in, same, words_rest
from batchedapi_operator.resources import canary_name, web_name
from batchedapi_operator.resources.policies import Policies
from batchedapi_operator.store import ApiView, Store
from batchedapi_operator.views import Observed

NOT_FOUND: Final = 404


class Reconciler:
    """The work of the queue: brings one API up to date."""

    def __init__(
        self,
        cluster: Kube,
        store: Store,
        outbox: Outbox,
        serving_image: str,
        *,
        policies: Policies = NO_POLICIES,
        pod_defaults: Pod = SPREAD,
        image_volumes: bool = False,
        forget: Callable[[ObjectKey], None] = lambda _: None,
        judged: Callable[[ObjectKey], Judged | None] = lambda _: None,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._serving_image = serving_image
        self._policies = policies
        self._pod_defaults = pod_defaults
        self._image_volumes = image_volumes
        self._forget = forget
        self._judged = judged
        self._wall = wall
        self._executor = PlanExecutor(cluster, wall)
        self._outbox = outbox

    async def reconcile(self, key: ObjectKey) -> float | None:
        """Bring `key` up to date; returns after how many seconds to look again, if so.

        Raises:
            ApplyError: The queue is to try again.
        """
        known = self._store.api(key)
        document = await self._cluster.get(BATCHED_APIS, key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self._executor.forget(key)
            self._outbox.forget(key)
            self._store.remove_api(key)
            self._forget(key)
            if document is None or deletion(document["metadata"]) is None:
                return None
        try:
            return await self._bring_up_to_date(key, document, known)
        except NamespaceGoingError:
            return None

    async def _bring_up_to_date(
        self, key: ObjectKey, document: JsonObject, known: ApiView | None
    ) -> float | None:
        try:
            observed = await observe(
                self._cluster, document, self._policies.kinds, self._store.revisions(key),
                tried=self._store.canary(key) is not None,
            )  # fmt: skip
        except NamespaceGoingError:
            raise
        except ApplyError as error:
            before, now = section(document, "status"), rfc3339(self._wall())
            generation = document["metadata"].get("generation", 0)
            status = hindered_status(before, hindrance_of(error), generation, now)
            self._tell(key, document, before, Plan((), None, (), (), status, (), None))
            raise
        if "deletionTimestamp" not in document["metadata"]:
            self._store.put_observed(document, observed, known)
        made, failed = await self._carried_out(key, document, observed)
        rest = self._tell(key, document, observed.status, made)
        again = min(rest, math.inf if made.retry_after is None else made.retry_after)
        if failed is None:
            return None if again == math.inf else again
        if failed.rest is not None:
            failed.rest = again = min(again, failed.rest)
        if isinstance(failed, RefusedError) or failed.status == NOT_FOUND:
            return again  # no fault of ours, or the API is gone, as the next look will find
        raise failed

    async def _carried_out(
        self, key: ObjectKey, document: JsonObject, observed: Observed
    ) -> tuple[Plan, ApplyError | None]:
        """The plan, as it is to be told, and what kept it from being carried out."""
        made = self._plan(document, observed)
        try:
            deployed = await self._executor.write_children(key, made)
            if observed.deployment is not None and deployed:
                # those before were rolled out maybe: these, of another template, are not yet
                web = ObjectKey(key.namespace, web_name(key.name))
                tried = ObjectKey(key.namespace, canary_name(key.name))
                canary = deployed.get(tried, observed.canary.deployment)
                observed = replace(
                    observed,
                    deployment=deployed.get(key, observed.deployment),
                    web=replace(
                        observed.web, deployment=deployed.get(web, observed.web.deployment)
                    ),
                    canary=replace(observed.canary, deployment=canary),
                )
                made = self._plan(document, observed)
        except NotOwnedError as error:
            return self._plan(document, observed, refusal=error), None
        except NamespaceGoingError:
            raise
        except RefusedError as error:
            problem = InvalidSpecError(refusal_reason(error.message), in_our_words(error.message))
            return self._plan(document, observed, refusal=problem), error
        except ApplyError as error:
            return self._plan(document, observed, hindrance=hindrance_of(error)), error
        return made, None

    def _tell(self, key: ObjectKey, document: JsonObject, before: JsonObject, made: Plan) -> float:
        """Have the status written, unless the API has it already.

        Returns:
            Seconds until its words are to be written; infinite: they are those that it has.
        """
        metadata, news, rest = document["metadata"], news_in(before, made.status), math.inf
        if same(before, made.status) and not self._outbox.sending(key, RECONCILER_STATUS):
            news = News.FIGURES
            rest = words_rest(metadata, before, made.status, self._wall())
            if rest > 0.0:
                self._outbox.withdraw(key, RECONCILER_STATUS)
                return rest
        write = partial(self._write_status, key, metadata["uid"], made)
        self._outbox.put(key, RECONCILER_STATUS, write, news)
        return math.inf

    async def _write_status(self, key: ObjectKey, uid: str, made: Plan) -> None:
        """The status, and once it is there the events that tell of it."""
        await self._executor.write_status(key, uid, made)
        if made.notes and self._store.api(key) is not None:
            self._outbox.put(key, STATE_EVENTS, self._executor.events(key, uid, made))

    def _plan(
        self,
        document: JsonObject,
        observed: Observed,
        refusal: InvalidSpecError | None = None,
        hindrance: NewCondition | None = None,
    ) -> Plan:
        return plan(
            document,
            observed,
            self._serving_image,
            rfc3339(self._wall()),
            policies=self._policies,
            defaults=self._pod_defaults,
            image_volumes=self._image_volumes,
            refusal=refusal,
            hindrance=hindrance,
            judged=self._judged(ObjectKey.of(document)),
        )
