"""Errors of the operator.

OperatorError
├── InvalidSpecError     the user has to change something; a condition says what
├── NotOwnedError        an object of that name exists and belongs to somebody else
├── ApplyError           the apiserver refused or did not answer; tried again with back-off
│   ├── ConflictError    somebody else wrote in between, or owns a field
│   ├── RefusedError     the object itself was refused (400, 403, 413, 422)
│   ├── NotPermittedError  the operator lacks a right, which may be granted yet (403)
│   ├── WebhookError  a webhook that the apiserver has to ask is down (500)
│   └── NamespaceGoingError  nothing can be made in a namespace that is being deleted
└── MetricsUnavailableError  a pod's metrics could not be read or are not to be believed
"""


class OperatorError(Exception):
    """Base of every error that the operator raises itself."""


class InvalidSpecError(OperatorError):
    """A manifest that cannot become pods; `reason` is the reason of the condition SpecValid."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class NotOwnedError(InvalidSpecError):
    """A child's name is taken by an object that this BatchedAPI does not control."""

    def __init__(self, kind: str, name: str, api: str, more: str = "") -> None:
        super().__init__(
            "NotOwned",
            f"{kind} {name} exists and is not controlled by BatchedAPI {api};"
            f" it is left as it is: rename or delete one of them{more}",
        )


def unheard(status: int) -> bool:
    """Whether an HTTP status (0: none) says that the apiserver did not, or could not, answer."""
    return status in {0, 429} or status >= 500  # noqa: PLR2004 - HTTP


class ApplyError(OperatorError):
    """A request to the apiserver that failed; `status` is the HTTP code, 0 without an answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.rest: float | None = None
        """Seconds until whoever sent it sends it again; None: that is for whoever catches this."""

    @property
    def unheard(self) -> bool:
        """The apiserver did not answer, or was not able to: no fault of what it was asked."""
        return unheard(self.status)

    @property
    def final(self) -> bool:
        """Trying again is of no use."""
        return False


class ConflictError(ApplyError):
    """409: the object changed in between, or another manager owns a field with another value.

    Also 422 where the object is another than the one with the uid that was sent.
    """


class RefusedError(ApplyError):
    """The apiserver will not have this object however often it is sent.

    `fields` are those that it has named, such as `spec.ports[1].name`.
    """

    def __init__(self, message: str, status: int, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message, status)
        self.fields = fields


class NotPermittedError(ApplyError):
    """The operator has no right to do that; the message is RBAC's own, with verb and resource."""


class WebhookError(ApplyError):
    """A webhook of somebody else's is down; the apiserver itself answers, and names it."""

    unheard = False


class NamespaceGoingError(ApplyError):
    """The namespace is being deleted: everything in it goes, nothing is to be brought about."""

    final = True


class MetricsUnavailableError(OperatorError):
    """A metrics page that could not be read whole; `result` is the label of the scrape counter."""

    def __init__(self, result: str, message: str) -> None:
        super().__init__(message)
        self.result = result
