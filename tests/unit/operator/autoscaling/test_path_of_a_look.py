"""How far a look at an API travels until its replicas are written: the files of ours on the way."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, Final

import pytest
from tests.support.walks import Walk
from tests.unit.operator.autoscaling.pages import page
from tests.unit.operator.autoscaling.test_loop import Situation
from tests.unit.operator.worlds import deliver_all

from batchedapi_operator.autoscaling import scrape
from batchedapi_operator.autoscaling.scrape import Outcome, Scraper
from batchedapi_operator.views import PodView

MOST_FILES: Final = 30
OURS: Final = ("/batchedapi_core/", "/batchedapi_operator/")


class Pages:
    """Stands in for the HTTP client: every pod has the same page."""

    def __init__(self) -> None:
        self.rows = 0.0

    @asynccontextmanager
    async def get(self, _url: str, *, allow_redirects: bool) -> AsyncIterator[Any]:
        """The page, in one piece."""
        assert not allow_redirects
        text = page(
            received=self.rows, rows=self.rows, batches=self.rows / 10, seconds=self.rows / 500,
            full=0,
        )  # fmt: skip

        async def pieces(_size: int) -> AsyncIterator[bytes]:
            yield text.encode()

        content = SimpleNamespace(iter_chunked=pieces)
        yield SimpleNamespace(status=200, headers={}, content_length=len(text), content=content)


class Asked(Situation):
    """A situation whose pods are asked as the operator does, for pages that no socket brings."""

    def __init__(self, **spec: Any) -> None:
        self.pages = Pages()
        self.scraper = Scraper(self.pages, 8081, 1.0)  # type: ignore[arg-type]  # it gets alone
        super().__init__(**spec)

    async def scrape(self, pods: Sequence[PodView]) -> list[Outcome]:
        """As the operator does."""
        self.pages.rows = self.rows / len(pods)
        return await self.scraper.scrape(pods)


async def test_a_look_passes_few_files_until_the_replicas_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever wants to know why there are so many replicas reads so many files."""
    busy = Asked(autoscaling={"maxReplicas": 5})
    clock = SimpleNamespace(monotonic=lambda: busy.now, time=lambda: 4600.0 + busy.now)
    monkeypatch.setattr(scrape, "time", clock)
    busy.rate = 100.0
    await busy.run(60)

    walk, scale = Walk(OURS), busy.cluster.scale

    async def written(*arguments: Any, **named: Any) -> None:
        walk.end()
        await scale(*arguments, **named)

    monkeypatch.setattr(busy.cluster, "scale", written)
    busy.now += 2.0
    busy.rows += 2.0 * 900.0
    with walk.on():
        await busy.autoscaler.round()
        await deliver_all(busy.outbox)

    assert ("scale", str(busy.replicas)) in busy.cluster.writes
    assert len(walk.files) <= MOST_FILES, "\n".join(walk.files)
