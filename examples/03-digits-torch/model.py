from pathlib import Path

import torch
from safetensors.torch import load_model
from torch import nn

from batchedapi_serving import Tensor, batched

WEIGHTS = Path(__file__).with_name("digits.safetensors")


def network():
    """Digits of 8x8 pixels -> ten scores."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Digits:
    """Probabilities of the ten digits for a picture of 8x8 grey values, 0 to 16."""

    def __init__(self, config, context):
        self.device = torch.device(context.device)  # cuda:0 is this process's own GPU
        self.model = network()
        load_model(self.model, context.model_path or WEIGHTS)
        self.model.to(self.device).eval()

    @batched(inputs=Tensor("FP32", [8, 8]), outputs=Tensor("FP32", [10]), max_batch_size=64)
    def predict(self, pictures):  # float32 (n, 8, 8) -> float32 (n, 10)
        with torch.inference_mode():
            batch = torch.from_numpy(pictures).to(self.device).unsqueeze(1) / 16
            return self.model(batch).softmax(dim=1).cpu().numpy()
