import torch
from torchvision.models import resnet50

from batchedapi_serving import Tensor, batched


class ResNet50:
    """An image of 3x224x224 values -> 1000 class scores. Random weights: for measuring."""

    def __init__(self, config, context):
        torch.manual_seed(0)
        self.device = torch.device(context.device)
        self.model = resnet50(weights=None).to(self.device).eval()

    @batched(inputs=Tensor("FP32", [3, 224, 224]), outputs=Tensor("FP32", [1000]))
    def predict(self, images):  # float32 (n, 3, 224, 224) -> float32 (n, 1000)
        with torch.inference_mode():
            return self.model(torch.from_numpy(images).to(self.device)).cpu().numpy()
