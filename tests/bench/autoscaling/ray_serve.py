"""The default autoscaling policy of Ray Serve.

Source: ray `python/ray/serve/autoscaling_policy.py` (`replica_queue_length_autoscaling_policy`,
`_apply_delay_logic`) and `config.py` (`AutoscalingConfig`). Its loop runs ten times a second, here
once; delays are counted in seconds instead, so they are as long.
"""

import math
from typing import Final

from autoscaling.trailing import Trailing, in_flight
from batchedapi_core.simulation import SimulatedFleet

LOOK_BACK: Final = 30.0
UP_DELAY: Final = 30
DOWN_DELAY: Final = 600
DEFAULT_TARGET: Final = 2.0
"""target_ongoing_requests."""


class RayServe:
    """Ongoing requests over a target, once the same direction was wished for long enough.

    Args:
        target: Ongoing requests of one replica.
    """

    def __init__(self, target: float = DEFAULT_TARGET) -> None:
        self._target = target
        self._ongoing = Trailing(LOOK_BACK)
        self._in_a_row = 0  # wishes for more, negative: for fewer

    def __call__(self, fleet: SimulatedFleet) -> int | None:
        """Replicas, or None until the wish is old enough; asked every second."""
        self._ongoing.add(fleet.now, in_flight(fleet))
        current = len(fleet.pods)
        wished = math.ceil(self._ongoing.mean() / self._target)
        wished = min(max(wished, 1, fleet.min_replicas), fleet.max_replicas)
        if wished > current:
            self._in_a_row = max(0, self._in_a_row) + 1
        elif wished < current:
            self._in_a_row = min(0, self._in_a_row) - 1
        else:
            self._in_a_row = 0
        if -DOWN_DELAY <= self._in_a_row <= UP_DELAY:
            return None
        self._in_a_row = 0
        return wished
