"""What a running predictor knows of its place, and may ask of its other methods."""

from dataclasses import dataclass, field
from typing import Any, Protocol


class ItemError(Exception):
    """Returned (or raised) by a predictor for one item: fails that item, not its batch.

    Args:
        status: HTTP status for that item, 400 to 599.
        message: Shown to the client.
    """

    # Of a subclass that does not call our __init__: its items fail like those of any exception.
    status: int = 500
    message: str = ""

    def __init__(self, status: int, message: str) -> None:
        if not 400 <= status <= 599:  # noqa: PLR2004 - the range of HTTP error statuses
            raise ValueError(
                f"{type(self).__name__}: expected a status of 400 to 599, got {status}"
            )
        super().__init__(message)
        self.status = int(status)  # numpy's integers, too
        self.message = str(message)


class SubmitError(ItemError):
    """`Context.submit` got no answer; not caught, it is the answer of the item that needed it."""


class Submitter(Protocol):
    """What carries rows to the queue of another method."""

    async def submit(self, method: str, rows: Any) -> Any:
        """See Context.submit."""


@dataclass(frozen=True, slots=True)
class Context:
    """Where this copy of the predictor runs.

    Attributes:
        name: Name of the API.
        worker_index: 0-based index of this model process in its replica.
        processes: Model processes in this replica.
        threads: Batches that this process runs at once.
        device: `cuda:0` if this process sees a GPU, else `cpu`.
        devices: All devices that this process sees, `cuda:0` first; empty on a CPU.
        model_path: File or folder of the model that `predictor.model.uri` names, once it is here.
        submitter: Set by the server; in a unit test, anything with such a method.
    """

    name: str
    worker_index: int
    processes: int
    threads: int
    device: str
    devices: tuple[str, ...] = ()
    model_path: str | None = None
    submitter: Submitter | None = field(default=None, repr=False, compare=False)

    async def submit(self, method: str, rows: Any) -> Any:
        """Let another batched method of this predictor answer rows, batched with everybody's.

        Args:
            method: Its name.
            rows: What it takes: a list of items, an array, or a dict of arrays; rows first.

        Returns:
            What it answers for them, in their order, rows first. An ItemError in a list stays
            where it is.

        Raises:
            SubmitError: the rows were refused or could not be answered.
        """
        if self.submitter is None:
            raise SubmitError(
                503,
                f"context.submit({method!r}): expected a running server; a test gives"
                " Context(..., submitter=) something with `async def submit(method, rows)`",
            )
        return await self.submitter.submit(method, rows)
