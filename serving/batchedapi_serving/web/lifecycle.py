"""The life of one connection: whose turn it is, for how long, and what is still taken.

Decisions only. Events come in as calls, with the time where it matters, and an action goes out.
"""

import enum
import math
from collections.abc import Callable, Mapping
from typing import Final

from batchedapi_serving.errors import ServingError, TooSlowError
from batchedapi_serving.web.limits import (
    ACTIVE,
    AGE_JITTER,
    EXPIRY_GRACE,
    LAST_CALL,
    LINGER_BYTES,
    Limits,
)
from batchedapi_serving.web.parser import BODY, HEADERS


class Action(enum.Enum):
    """The next step with a connection."""

    WAIT = "wait"
    REFUSE = "refuse"
    """Answer 408, see `too_slow`, then close."""
    CLOSE = "close"
    LINGER = "linger"
    """Send no more, drop what comes, and wait for the client to close."""
    ABORT = "abort"
    """It does not read what it was sent: drop it."""


class Turn(enum.StrEnum):
    """The one that a connection waits for; each has its own limit in time."""

    IDLE = "idle"
    """A client without a request."""
    SENDING = "sending"
    """A client that sends a request: its headers, then its body."""
    ANSWERING = "answering"
    """This server, so that the client has no limit."""
    READING = "reading"
    """A client that reads an answer, or has to before it gets the next one."""
    CLOSING = "closing"
    """A connection that was closed, and whose last bytes are on their way."""


class Event(enum.StrEnum):
    """A thing that happens to a connection."""

    PART = "part"
    """A request has begun to come."""
    OVER = "over"
    """Nothing more of it is awaited, and it is not answered."""
    BEGUN = "begun"
    """A request is being answered."""
    ANSWERED = "answered"
    ANSWERED_AHEAD = "answered ahead"
    """An answer was written, and the next request has begun to come."""
    ANSWERED_LAST = "answered last"
    """An answer was written while the server stops."""
    STUCK = "stuck"
    """The client does not take what was written."""
    UNSTUCK = "unstuck"
    """It took everything, and nothing else is known of it."""
    UNSTUCK_AHEAD = "unstuck ahead"
    """It took everything, and is sending a request."""
    UNSTUCK_BUSY = "unstuck busy"
    """It took everything so far of an answer that goes on."""
    CLOSED = "closed"


_EVERY: Final = (Turn.IDLE, Turn.SENDING, Turn.ANSWERING, Turn.READING)
TABLE: Final[Mapping[Event, Mapping[Turn, Turn]]] = {
    Event.PART: {Turn.IDLE: Turn.SENDING},
    Event.OVER: {Turn.SENDING: Turn.IDLE},
    Event.BEGUN: dict.fromkeys(_EVERY, Turn.ANSWERING),
    Event.ANSWERED: dict.fromkeys(_EVERY, Turn.READING),
    Event.ANSWERED_AHEAD: dict.fromkeys(_EVERY, Turn.SENDING),
    Event.ANSWERED_LAST: dict.fromkeys(_EVERY, Turn.IDLE),
    Event.STUCK: dict.fromkeys(_EVERY, Turn.READING),
    Event.UNSTUCK: {Turn.READING: Turn.IDLE},
    Event.UNSTUCK_AHEAD: {Turn.READING: Turn.SENDING},
    Event.UNSTUCK_BUSY: {Turn.READING: Turn.ANSWERING},
    Event.CLOSED: dict.fromkeys(_EVERY, Turn.CLOSING),
}
"""By event the turn that follows each turn; one that is not named stays."""


class Intake(enum.IntEnum):
    """How much is still taken of a client. A connection goes through these in order, never back."""

    OPEN = 0
    LEAVING = 1
    """Everything, and the next answer ends the connection."""
    HALF_CLOSED = 2
    """Nothing, for the client sends no more; it waits for its answers."""
    REFUSING = 3
    """Nothing; an error follows the answers that are due, then the end."""
    LINGERING = 4
    """All that comes is dropped, until the client closes."""
    CLOSED = 5


_OPEN: Final = Intake.OPEN
_ANSWERING: Final = Turn.ANSWERING
_READING: Final = Turn.READING
"""Every request passes these; to look one up in its class takes as long as a call."""


class Lifecycle:
    """The state of one connection; all times are seconds on the loop's clock.

    Attributes:
        turn: See Turn.
        intake: See Intake.
        busy: A request is being answered.
        deaf: Nothing more is taken.
        sends_ahead: The client does not wait for one answer before its next request.
        refusal: The error that follows the answers that are due.
    """

    __slots__ = (
        "_answered_at", "_dropped", "_expires", "_fresh", "_leaves", "_limits", "_part",
        "_part_expires", "_since", "_unread", "busy", "deaf", "intake", "refusal", "sends_ahead",
        "turn",
    )  # fmt: skip

    def __init__(self, limits: Limits, now: float, luck: float = 0.5) -> None:
        """`luck`, from 0 to 1, is how much longer than others this connection may live."""
        self._limits = limits
        self._leaves = now + limits.age * (1 + AGE_JITTER * (2 * luck - 1))
        self.turn = Turn.IDLE
        self.intake = _OPEN
        self.busy = self.deaf = self.sends_ahead = False
        self.refusal: ServingError | None = None
        self._dropped = 0  # bytes that came while lingering
        self._expires = now + limits.header_arrival  # in READING, IDLE and CLOSING
        self._fresh = True  # no request has come yet
        self._part: str | None = None  # of a request: what is on its way
        self._since = now  # when that part began
        self._part_expires = math.inf  # in SENDING and ANSWERING
        self._answered_at = now
        self._unread: int | None = None  # bytes of answers, when they were last counted

    def _happens(self, event: Event) -> None:
        self.turn = TABLE[event].get(self.turn, self.turn)

    # ------------------------------------------------------------ what is taken

    def becomes(self, intake: Intake) -> None:
        """Take as much as that from now on; nothing if less is taken already."""
        if intake > self.intake:
            self.intake = intake
            self.deaf = intake >= Intake.HALF_CLOSED

    def half_closed(self) -> None:
        """The client sends no more, and waits for its answers."""
        self.becomes(Intake.HALF_CLOSED)
        self.part_over()

    def refuses(self, error: ServingError) -> None:
        """Nothing more is taken, and `error` says why after the answers that are due."""
        self.becomes(Intake.REFUSING)
        self.refusal = error
        self.part_over()

    def refused(self, now: float, *, lingers: bool) -> None:
        """The refusal was written; the client has a little time to read it."""
        self.refusal = None
        self.part_over()
        if lingers:
            self.becomes(Intake.LINGERING)
        self._closing(now, 0)  # no more, however much of it moves

    def closed(self, now: float, unsent: int) -> None:
        """The connection was closed once what was written is sent, `unsent` bytes are not yet."""
        self.becomes(Intake.CLOSED)
        self._closing(now, unsent)

    def _closing(self, now: float, unsent: int) -> None:
        self._happens(Event.CLOSED)
        self._unread = unsent
        self._expires = now + EXPIRY_GRACE

    def end(self, now: float, unread: int, unsent: int) -> Action:
        """How to close after an answer that says so: LINGER or CLOSE.

        A socket that is closed with bytes unread, or that gets some afterwards, resets the
        connection, and with it maybe answers that the client has not read. So a client that may
        have sent more, not knowing yet, is told that nothing follows; what it sends is dropped, and
        it closes, within EXPIRY_GRACE and LINGER_BYTES.

        Args:
            unread: Bytes that the client has sent and the server has not read.
            unsent: Bytes of answers that the client has not taken.
        """
        unaware = self.intake is Intake.LEAVING or self.sends_ahead or unread > 0
        lingers = unaware and self.intake is not Intake.HALF_CLOSED
        self.becomes(Intake.LINGERING if lingers else Intake.CLOSED)
        self._closing(now, unsent)
        return Action.LINGER if lingers else Action.CLOSE

    def dropped(self, size: int) -> Action:
        """So many bytes came that nobody takes: WAIT, or ABORT if it is too much."""
        self._dropped += size
        lingers = self.intake is Intake.LINGERING
        return Action.ABORT if lingers and self._dropped > LINGER_BYTES else Action.WAIT

    # ------------------------------------------------------------ whose turn it is

    def part_awaited(self, part: str, now: float) -> None:
        """A request has begun and not ended: `part` of it is to come."""
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
        self._happens(Event.PART)

    def part_over(self) -> None:
        """Nothing more of that request is awaited."""
        self._part = None
        self._part_expires = math.inf
        if self.turn is Turn.SENDING:
            self._happens(Event.OVER)

    def begun(self, *, more: bool) -> None:
        """A request is being answered; `more`: the next is on its way, and its limit goes on."""
        self._fresh = False
        self.busy = True
        self.turn = _ANSWERING
        if self._part is not None and not more:
            self.part_over()

    def answered(self, now: float, *, draining: bool) -> None:
        """An answer was written; whatever comes next is the client's turn."""
        self.busy = False
        if self._part is not None:
            self._happens(Event.ANSWERED_AHEAD)
            return
        self._answered_at, self._unread = now, None
        if draining:
            self._happens(Event.ANSWERED_LAST)
            self._expires = now + LAST_CALL
        else:
            self.turn = _READING
            self._expires = now + self._limits.grace_period / 2

    def stuck(self, now: float) -> None:
        """Requests are here, and wait until the client takes the answers before them."""
        if self.turn is not Turn.READING and self.turn is not Turn.CLOSING:
            self._answered_at, self._unread = now, None
            self._expires = now + self._limits.grace_period / 2
            self._happens(Event.STUCK)

    def unstuck(self, now: float) -> None:
        """The client has taken its answers.

        While it was stuck nothing was read: of a request on its way, that time is not the sender's.
        """
        if self.turn is not Turn.READING:
            return
        if self._part is not None:
            self._since += now - self._answered_at
            self._part_expires += now - self._answered_at
        if self.busy:
            self._happens(Event.UNSTUCK_BUSY)
        elif self._part is not None:
            self._happens(Event.UNSTUCK_AHEAD)

    def waits_since(self) -> float | None:
        """Since when no whole request of its client is here; None: one is, or it was closed.

        That is since the last answer, the connection was made, or the part that is coming began.
        """
        if self.busy or self.turn is Turn.ANSWERING or self.turn is Turn.CLOSING:
            return None
        return self._answered_at if self._part is None else self._since

    # ------------------------------------------------------------ how long

    def may_stop(self, now: float) -> bool:
        """The server stops: whether an idle connection can be closed at once.

        Whoever was accepted or answered a moment ago has its next request mostly on the way, and
        was not told that the connection ends: it gets a moment to send it.
        """
        if self._fresh or now - self._answered_at < ACTIVE:
            self._happens(Event.UNSTUCK)
            self._expires = min(self._expires, now + LAST_CALL)
            return False
        return True

    def look(self, now: float, arrived: int, unsent: Callable[[], int]) -> Action:
        """The step to take; called about every second.

        Args:
            arrived: Bytes of the body that is on its way.
            unsent: How many bytes of answers the client has not taken; asked only when it matters.
        """
        if now >= self._leaves:  # its client is to go elsewhere, with the next answer
            self.becomes(Intake.LEAVING)
        sent = self.turn is Turn.SENDING or self.turn is Turn.ANSWERING
        if now < (self._part_expires if sent else self._expires):
            return Action.WAIT
        match self.turn:
            case Turn.CLOSING:
                left = unsent()
                return self._of_rest(now, left) if left else Action.ABORT
            case Turn.IDLE:
                return Action.CLOSE
            case Turn.READING:
                return self._of_reader(now, unsent())
            case Turn.SENDING | Turn.ANSWERING:
                return self._of_sender(now, arrived)

    def _of_sender(self, now: float, arrived: int) -> Action:
        limits = self._limits
        if self._part == BODY and now - self._since < limits.body_arrival:
            enough_until = self._since + arrived / limits.least_rate
            if enough_until > now:
                self._part_expires = min(enough_until, self._since + limits.body_arrival)
                return Action.WAIT
        return Action.REFUSE

    def _of_reader(self, now: float, unsent: int) -> Action:
        if unsent:
            return self._of_rest(now, unsent)
        if self.busy or self._part is not None:
            self.unstuck(now)
            return Action.WAIT
        self._happens(Event.UNSTUCK)
        self._expires = self._answered_at + self._limits.idle
        return Action.CLOSE if now >= self._expires else Action.WAIT

    def _of_rest(self, now: float, unsent: int) -> Action:
        """The step for answers that are on their way, and have to move."""
        half = self._limits.grace_period / 2
        if self._unread is not None and unsent > self._unread - self._limits.least_rate * half:
            return Action.ABORT
        self._unread = unsent
        self._expires = now + half
        return Action.WAIT

    def too_slow(self) -> TooSlowError:
        """The error of REFUSE: which limit it was."""
        limits = self._limits
        if self._part == HEADERS:
            return TooSlowError(
                f"headers: expected the end of them within {limits.header_arrival:g} s"
            )
        return TooSlowError(
            f"body: expected all of it within {limits.body_arrival:g} s, and"
            f" {limits.least_rate} bytes a second after {limits.grace_period:g} s"
        )
