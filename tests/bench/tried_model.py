"""The model of compared.py: how slow, how faulty and how wrong it is, its config says."""

import time
from typing import Any

import numpy as np

from batchedapi_serving import Tensor, batched

ROW: Tensor = Tensor("FP32", [4])
ANSWER: Tensor = Tensor("FP32", [2])


class Tried:
    """Of each row of four numbers the label, whether its sum is above 0, and the sum."""

    def __init__(self, config: dict[str, Any]) -> None:
        time.sleep(config["start"])
        self._config = config

    @batched(inputs=ROW, outputs=ANSWER)
    def predict(self, x: Any) -> Any:
        """Asleep for 1 ms and 5 ms a row, as for a device."""
        return self.answer(x)

    def answer(self, x: Any) -> Any:
        """Answers, or ValueError."""
        time.sleep(0.001 + 0.005 * self._config["row"] * len(x))
        if self._config["failing"] and (x[:, 0] % 50 == 7).any():
            raise ValueError("one of fifty rows fails")
        total = x.sum(axis=1) * (np.nan if self._config["nan"] else 1.0)
        label = (total > 0) ^ self._config["flipped"]
        return np.stack([label, total], axis=1).astype(np.float32)


class Wider(Tried):
    """Takes rows of another type."""

    @batched(inputs=Tensor("FP64", [4]), outputs=ANSWER)
    def predict(self, x: Any) -> Any:
        """See Tried."""
        return self.answer(x)
