"""Service time of one batch as a straight line in its size: t(n) = fixed + per_row * n.

Inference of deep networks is close to deterministic, which is why two numbers suffice
(Clockwork, OSDI'20); in the literature they are called a and b.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """t(n) = fixed + per_row * n seconds for a batch of n rows."""

    fixed: float  # seconds
    per_row: float  # seconds

    def seconds(self, rows: float) -> float:
        """Seconds that one lane needs for a batch of `rows` rows."""
        return self.fixed + self.per_row * rows
