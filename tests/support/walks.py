"""The functions of ours that something passes on its way."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Walk:
    """Counts the calls of our functions, by file and name, while it is on.

    Args:
        ours: Parts of the paths of our files.
        other_end: Of those, parts of the paths of what a test plays itself: what it calls there is
            not counted, with all that follows from it.
    """

    def __init__(self, ours: Sequence[str], other_end: Sequence[str] = ()) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._ours = ours
        self._other_end = other_end
        self._elsewhere: FrameType | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Count what is called meanwhile."""
        sys.setprofile(self._called)
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Count no more, wherever on the way."""
        sys.setprofile(None)

    @property
    def files(self) -> list[str]:
        """The files that were passed, in alphabetical order."""
        return sorted({file for file, _ in self.calls})

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._elsewhere is not None:
            if event == "return" and frame is self._elsewhere:
                self._elsewhere = None
            return
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event != "call" or name.endswith(">") or not any(part in file for part in self._ours):
            return
        caller = frame.f_back
        from_test = caller is not None and "/tests/" in caller.f_code.co_filename
        if from_test and any(part in file for part in self._other_end):
            self._elsewhere = frame
            return
        self.calls[file.partition("/batchedapi_")[2], name] += 1
