"""Entries of one method that run together, and what is run again when that fails."""

from collections.abc import Sequence
from typing import Final

import orjson

from batchedapi_serving.codecs.item_results import Item, ItemResults
from batchedapi_serving.codecs.problems import error_object
from batchedapi_serving.dispatch.frames import Meta
from batchedapi_serving.dispatch.jobs import PartEntry, halved
from batchedapi_serving.dispatch.line import HalvesOfBatch, MethodLine
from batchedapi_serving.errors import PredictorError

RETRY: Final = "retry"
_TRIAL: Final = 2  # deaths


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
        "size",
    )

    def __init__(
        self, line: MethodLine, entries: Sequence[PartEntry], reason: str, deaths: int = 0
    ) -> None:
        self.line = line
        self.entries = entries
        self.reason = reason
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
        """The halves to run next, so that only the culprit fails; none if it is alone."""
        live = self._live()
        if len(live) <= 1:
            return [self._again(live)] if live and len(self.entries) > 1 else []
        return self._halves(live)

    def search(self) -> "list[Batch]":
        """The halves of a lone request that has a culprit among its rows.

        None if it is not alone, or one row, or was halved as often as is allowed.
        """
        live = self._live()
        if len(live) == 1 and live[0].rows > 1 and live[0].payload.job.may_halve():
            return [self._again([half]) for half in halved(live[0])]
        return []

    def after_memory_error(self) -> "list[Batch]":
        """The halves to run next, of a lone request its rows'; none if it is one row.

        What is learned of the size waits for both.
        """
        live = self._live()
        if len(live) == 1 and live[0].rows > 1:
            halves = [self._again([half]) for half in halved(live[0])]
        else:
            halves = self.after_failure()
        if len(halves) > 1:
            pair = HalvesOfBatch(self.entries[0].shape, self.size)
            for half in halves:
                half.pair = pair
        return halves

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
            return [Batch(self.line, live, RETRY, deaths)]
        if len(self.entries) > 1 or (deaths == _TRIAL and not alone):
            return [Batch(self.line, [entry], RETRY, _TRIAL) for entry in live]
        return []

    def after_anothers_death(self) -> "list[Batch]":
        """What to run again if the process died of something else: all of it, unblamed."""
        live = self._live()
        return [self._again(live)] if live else []

    def still_wanted(self, now: float) -> "Batch | None":
        """The batch without those nobody waits for any more; None if that is all of them."""
        entries = [e for e in self.entries if not e.cancelled and e.deadline > now]
        if len(entries) == len(self.entries):
            return self
        if not entries:
            return None
        wanted = Batch(self.line, entries, self.reason, self.deaths)
        wanted.pair = self.pair
        return wanted

    def _halves(self, live: Sequence[PartEntry]) -> "list[Batch]":
        middle = len(live) // 2
        return [self._again(half) for half in (live[:middle], live[middle:])]

    def _again(self, entries: Sequence[PartEntry]) -> "Batch":
        return Batch(self.line, entries, RETRY, self.deaths)

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
