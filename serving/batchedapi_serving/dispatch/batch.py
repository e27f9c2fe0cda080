"""Entries of one method that run together, and what is run again when that fails."""

from collections.abc import Sequence
from typing import Final

import orjson

from batchedapi_core.batching import Parts, Search
from batchedapi_serving.codecs.results import Item, ItemResults, error_object
from batchedapi_serving.dispatch.jobs import PartEntry, cut
from batchedapi_serving.dispatch.line import HalvesOfBatch, MethodLine
from batchedapi_serving.errors import PredictorError
from batchedapi_serving.ipc.frames import Meta

RETRY: Final = "retry"
_TRIAL: Final = 2  # deaths
_HALVES: Final = 2


class Batch:
    """Entries of one line and one shape."""

    __slots__ = (
        "deaths",
        "entries",
        "line",
        "number",
        "pair",
        "reason",
        "requests",
        "rows",
        "search",
        "size",
    )

    def __init__(
        self,
        line: MethodLine,
        entries: Sequence[PartEntry],
        reason: str,
        deaths: int = 0,
        search: Search | None = None,
    ) -> None:
        self.line = line
        self.entries = entries
        self.reason = reason
        self.search = search
        """Of the failed batch that it is a part of."""
        self.deaths = deaths
        """Model processes that died while they ran these entries."""
        self.number = ""
        """What receipts call it; empty where there are none."""
        self.pair: HalvesOfBatch | None = None
        """What it is one half of, if that ran out of memory."""
        self.rows = self.size = 0
        for entry in entries:
            self.rows += entry.rows
            self.size += entry.size
        self.requests = len(entries)

    def after_failure(self) -> "list[Batch]":
        """What to run again, so that in the end only the culprit fails; nothing if it is alone."""
        live = self._live()
        if len(live) <= 1:
            return [self._again(live)] if live and len(self.entries) > 1 else []
        search = self.search or Search(len(live))
        parts = self.line.isolation.apart(search, len(live))
        return [self._again(live[start:stop], search) for start, stop in parts]

    def after_item_error(self) -> "list[Batch]":
        """What to run again of a batch of which one row was refused; a lone request's row is found.

        Nothing if it is one row, or its request was halved as often as is allowed: its rows are one
        client's, and are not run one by one.
        """
        lone = self._lone()
        if lone is not None:
            search = lone.payload.job.search()
            parts = search.halves(lone.rows)
            if parts:
                return self._rows_apart(lone, search, parts)
        return self.after_failure()

    def after_memory_error(self) -> "list[Batch]":
        """What to run again, of a lone request its rows; nothing if it is one row.

        What is learned of the size waits for both halves.
        """
        lone = self._lone()
        if lone is None:
            again = self.after_failure()
        else:
            search = lone.payload.job.search()
            parts = self.line.isolation.apart(search, lone.rows)
            again = self._rows_apart(lone, search, parts)
        if len(again) == _HALVES:
            pair = HalvesOfBatch(self.entries[0].shape, self.size)
            for half in again:
                half.pair = pair
        return again

    def _lone(self) -> PartEntry | None:
        """The only request that is left of it, if that has several rows."""
        live = self._live()
        return live[0] if len(live) == 1 and live[0].rows > 1 else None

    def _rows_apart(self, lone: PartEntry, search: Search, parts: Parts) -> "list[Batch]":
        return [self._again([part], search) for part in cut(lone, parts)]

    @property
    def on_trial(self) -> bool:
        """Whether it is to run with no other such batch beside it."""
        return self.deaths > 1

    def after_death(self, *, alone: bool = True) -> "list[Batch]":
        """What to run again: all of it once, then each alone and on trial, then nothing.

        A lone request is not tried a third time if it was `alone` in the process that died.
        """
        live, deaths = self._live(), self.deaths + 1
        if deaths == 1 and live:
            return [Batch(self.line, live, RETRY, deaths, self.search)]
        if len(self.entries) > 1 or (deaths == _TRIAL and not alone):
            return [Batch(self.line, [entry], RETRY, _TRIAL) for entry in live]
        return []

    def after_anothers_death(self) -> "list[Batch]":
        """What to run again if the process died of something else: all of it, unblamed."""
        live = self._live()
        return [self._again(live, self.search)] if live else []

    def still_wanted(self, now: float) -> "Batch | None":
        """The batch without those nobody waits for any more; None if that is all of them."""
        entries = [e for e in self.entries if not e.cancelled and e.deadline > now]
        if len(entries) == len(self.entries):
            return self
        if not entries:
            return None
        wanted = Batch(self.line, entries, self.reason, self.deaths, self.search)
        wanted.pair = self.pair
        return wanted

    def _again(self, entries: Sequence[PartEntry], search: Search | None = None) -> "Batch":
        return Batch(self.line, entries, RETRY, self.deaths, search)

    def _live(self) -> list[PartEntry]:
        return [entry for entry in self.entries if not entry.cancelled]


def raised_for_all(batch: Batch, meta: Meta) -> ItemResults:
    """Every row's answer where an ItemError was raised for them together, as `meta` says."""
    first = batch.entries[0].payload.first
    together = f"raised for rows {first} to {first + batch.rows - 1}, which were not run one by one"
    text = orjson.dumps(error_object("item_failed", f"{meta['message']} ({together})"))
    return ItemResults([Item(meta["status"], "json", text)] * batch.rows)


def predictor_failed(what: str) -> PredictorError:
    """The error of a request whose own row made the predictor fail."""
    return PredictorError(f"the predictor {what}; the server's log has the details")
