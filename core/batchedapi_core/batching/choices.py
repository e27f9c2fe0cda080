"""The words with which a manifest chooses how batches are formed and answered."""

import enum


class Strategy(enum.StrEnum):
    """When a batch that is not full is released.

    Under each of them at once while requests of another shape wait too, and while draining.
    """

    WINDOW = "Window"
    """At the interval, or earlier when waiting is not expected to help."""
    FIXED = "Fixed"
    """At the interval, counted from the oldest request, and never earlier."""
    IMMEDIATE = "Immediate"
    """Whatever waits, as soon as a lane is free."""
    ADAPTIVE = "Adaptive"
    """Window, with size and interval that follow from t(n) and the latency target."""


class SizeUnit(enum.StrEnum):
    """What `max_batch_size` counts."""

    ROWS = "Rows"
    REQUESTS = "Requests"


class QueueOrder(enum.StrEnum):
    """Whose turn it is."""

    FIFO = "FIFO"
    DEADLINE = "Deadline"
    """The earliest deadline first; requests without one last, in order of arrival."""


class ShapePolicy(enum.StrEnum):
    """What happens to rows whose variable dimensions differ."""

    BUCKET = "Bucket"
    """Each shape is batched with its like."""
    PAD = "Pad"
    """Rows are filled up with zeros to the longest of their batch, and answers cut back."""
    REJECT = "Reject"
    """A variable dimension is refused at start: every row has one shape."""


class LaneChoice(enum.StrEnum):
    """Which free lane gets the next batch."""

    RANDOM = "Random"
    LEAST_LOADED = "LeastLoaded"
    """Of the process with the fewest lanes busy."""


class ItemErrorPolicy(enum.StrEnum):
    """What happens to the neighbours of an input that makes a batch fail."""

    ISOLATE = "Isolate"
    """The batch is run again in halves until only the culprit fails."""
    FAIL_BATCH = "FailBatch"
    """All of them fail, and nothing is run twice."""


class Receipts(enum.StrEnum):
    """Whether answers say which batch they rode in."""

    OFF = "Off"
    HEADERS = "Headers"
    ALL = "All"
    """In headers, and in `parameters` of the Open Inference Protocol."""
