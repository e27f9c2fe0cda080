"""How long a connection waits for its client: decisions only, time is an argument.

A connection is always in one of these states, and each has its own limit in time: a request is
being sent (headers, then body), a request is being answered (no limit here: the client is not to
blame), an answer is being read, nothing happens, or the connection was closed and its last bytes
are on their way.
"""

import enum
import math
from collections.abc import Callable
from typing import Final

from batchedapi_serving.errors import TooSlowError
from batchedapi_serving.web.limits import ACTIVE, AGE_JITTER, EXPIRY_GRACE, LAST_CALL, Limits
from batchedapi_serving.web.parser import BODY, HEADERS


class Verdict(enum.Enum):
    """What to do with a connection now."""

    WAIT = "wait"
    REFUSE = "refuse"
    """Answer 408, see `refusal`, then close."""
    CLOSE = "close"
    ABORT = "abort"
    """It does not read what it was sent: drop it."""


class _Phase(enum.Enum):
    SENDING = "sending"
    ANSWERING = "answering"
    READING = "reading"
    IDLE = "idle"
    CLOSING = "closing"


_ANSWERING: Final = _Phase.ANSWERING
_READING: Final = _Phase.READING
"""Every request passes these; to look one up in its class takes as long as a call."""


class Timeouts:
    """Of one connection; all times are seconds on the loop's clock."""

    __slots__ = (
        "_answered_at", "_expires", "_fresh", "_leaves", "_limits", "_part", "_part_expires",
        "_phase", "_since", "_unread",
    )  # fmt: skip

    def __init__(self, limits: Limits, now: float, luck: float = 0.5) -> None:
        """`luck`, from 0 to 1, is how much longer than others this connection may live."""
        self._limits = limits
        self._leaves = now + limits.age * (1 + AGE_JITTER * (2 * luck - 1))
        self._phase = _Phase.IDLE
        self._expires = now + limits.header_arrival  # in READING, IDLE and CLOSING
        self._fresh = True  # no request has come yet
        self._part: str | None = None  # of a request: what is on its way
        self._since = now  # when that part began
        self._part_expires = math.inf  # in SENDING and ANSWERING
        self._answered_at = now
        self._unread: int | None = None  # bytes of answers, when they were last counted

    @property
    def sending(self) -> bool:
        """A request has begun to come and is not complete."""
        return self._part is not None

    def part_awaited(self, part: str, now: float, *, busy: bool) -> None:
        """A request has begun and not ended: `part` of it is to come; `busy` with one before it."""
        self._fresh = False
        if self._part == part:
            return
        self._part, self._since = part, now
        limits = self._limits
        self._part_expires = now + (
            limits.header_arrival
            if part == HEADERS
            else min(limits.grace_period, limits.body_arrival)
        )
        if not busy and self._phase is not _Phase.READING:
            self._phase = _Phase.SENDING

    def part_over(self) -> None:
        """Nothing more of that request is awaited."""
        self._part = None
        self._part_expires = math.inf

    def answering(self, *, more: bool) -> None:
        """A request is being answered; `more`: the next is on its way, and its limit goes on."""
        self._fresh = False
        self._phase = _ANSWERING
        if self._part is not None and not more:
            self.part_over()

    def answered(self, now: float, *, draining: bool) -> None:
        """An answer was written; whatever comes next is the client's turn."""
        if self._part is not None:
            self._phase = _Phase.SENDING
            return
        self._answered_at = now
        self._phase, self._unread = (_Phase.IDLE if draining else _READING), None
        self._expires = now + (LAST_CALL if draining else self._limits.grace_period / 2)

    def stuck(self, now: float) -> None:
        """Requests are here, and wait until the client takes the answers before them."""
        if self._phase is not _Phase.READING:
            self._answered_at = now
            self._phase, self._unread = _Phase.READING, None
            self._expires = now + self._limits.grace_period / 2

    def unstuck(self, now: float) -> None:
        """The client has taken its answers.

        While it was stuck nothing was read: of a request on its way, that time is not the sender's.
        """
        if self._phase is _Phase.READING and self._part is not None:
            self._since += now - self._answered_at
            self._part_expires += now - self._answered_at
            self._phase = _Phase.SENDING

    def refused(self, now: float) -> None:
        """Nothing more is taken; the client has a little time to read why."""
        self.part_over()
        self.closing(now, 0)  # no more, however much of it moves

    def closing(self, now: float, unsent: int) -> None:
        """The connection was closed once what was written is sent, `unsent` bytes are not yet."""
        self._phase, self._unread = _Phase.CLOSING, unsent
        self._expires = now + EXPIRY_GRACE

    def waits_since(self) -> float | None:
        """Since when no whole request of its client is here; None: one is, or it was closed.

        That is since the last answer, the connection was made, or the part that is coming began.
        """
        if self._phase is _Phase.ANSWERING or self._phase is _Phase.CLOSING:
            return None
        return self._answered_at if self._part is None else self._since

    def is_old(self, now: float) -> bool:
        """Whether its client is to go elsewhere, with the next answer."""
        return now >= self._leaves

    def may_stop(self, now: float) -> bool:
        """The server stops: whether an idle connection can be closed at once.

        Whoever was accepted or answered a moment ago has its next request mostly on the way, and
        was not told that the connection ends: it gets a moment to send it.
        """
        if self._fresh or now - self._answered_at < ACTIVE:
            self._phase = _Phase.IDLE
            self._expires = min(self._expires, now + LAST_CALL)
            return False
        return True

    def verdict(self, now: float, arrived: int, unsent: Callable[[], int]) -> Verdict:
        """What to do; called about every second.

        Args:
            now: Seconds.
            arrived: Bytes of the body that is on its way.
            unsent: How many bytes of answers the client has not taken; asked only when it matters.
        """
        sent = self._phase is _Phase.SENDING or self._phase is _Phase.ANSWERING
        if now < (self._part_expires if sent else self._expires):
            return Verdict.WAIT
        match self._phase:
            case _Phase.CLOSING:
                left = unsent()
                return self._of_rest(now, left) if left else Verdict.ABORT
            case _Phase.IDLE:
                return Verdict.CLOSE
            case _Phase.READING:
                return self._of_reader(now, unsent())
            case _Phase.SENDING | _Phase.ANSWERING:
                limits = self._limits
                if self._part == BODY and now - self._since < limits.body_arrival:
                    enough_until = self._since + arrived / limits.least_rate
                    if enough_until > now:
                        self._part_expires = min(enough_until, self._since + limits.body_arrival)
                        return Verdict.WAIT
                return Verdict.REFUSE

    def _of_reader(self, now: float, unsent: int) -> Verdict:
        if unsent == 0 and self._part is not None:
            self.unstuck(now)
            return Verdict.WAIT
        if unsent == 0:
            self._phase = _Phase.IDLE
            self._expires = self._answered_at + self._limits.idle
            return Verdict.CLOSE if now >= self._expires else Verdict.WAIT
        return self._of_rest(now, unsent)

    def _of_rest(self, now: float, unsent: int) -> Verdict:
        """Of answers that are on their way, and have to move."""
        half = self._limits.grace_period / 2
        if self._unread is not None and unsent > self._unread - self._limits.least_rate * half:
            return Verdict.ABORT
        self._unread = unsent
        self._expires = now + half
        return Verdict.WAIT

    def refusal(self) -> TooSlowError:
        """The error of a verdict REFUSE: which limit it was."""
        limits = self._limits
        if self._part == HEADERS:
            return TooSlowError(
                f"headers: expected the end of them within {limits.header_arrival:g} s"
            )
        return TooSlowError(
            f"body: expected all of it within {limits.body_arrival:g} s, and"
            f" {limits.least_rate} bytes a second after {limits.grace_period:g} s"
        )
