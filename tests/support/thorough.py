"""Numbers of examples: `make laws` draws ten times as many as `make unit`."""

import os
from typing import Final

FACTOR: Final = int(os.environ.get("THOROUGH", "1"))


def examples(number: int) -> int:
    """Examples that a long law draws in this run, where CI draws `number`."""
    return number * FACTOR
