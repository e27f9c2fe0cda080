import json
from pathlib import Path

import numpy as np

from batchedapi_serving import Tensor, batched


class Iris:
    """Softmax regression on the four measurements of an iris flower."""

    def __init__(self, config, context):
        weights = json.loads(Path(__file__).with_name("weights.json").read_text())
        self.coefficients = np.array(weights["coefficients"], dtype=np.float32)  # (4, 3)
        self.intercepts = np.array(weights["intercepts"], dtype=np.float32)  # (3,)

    @batched(inputs=Tensor("FP32", [4]), outputs=Tensor("FP32", [3]))
    def predict(self, x):  # float32 (n, 4), centimetres -> float32 (n, 3), probabilities
        scores = x @ self.coefficients + self.intercepts
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return scores / scores.sum(axis=1, keepdims=True)
