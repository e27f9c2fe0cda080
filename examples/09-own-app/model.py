"""What the worker runs: adds one to the values of each item and gives it a name."""

import uuid

from batchedapi_serving import ItemError, batched

EXAMPLE = {"content": "string", "nested": {"key": "string", "values": [1, 5, 2]}}


class Items:
    """JSON items of whoever asked, in one list."""

    def __init__(self, config, context):
        self.step = config.get("step", 1)

    @batched(example=EXAMPLE)
    def predict(self, items):
        return [self._answer(item) for item in items]

    def _answer(self, item):
        try:
            nested = item["nested"]
            added = [value + self.step for value in nested["values"]]
        except (KeyError, TypeError) as error:  # one bad item fails alone
            return ItemError(422, f"expected nested.values to be a list of numbers: {error}")
        nested = {**nested, f"values_add{self.step}": added}
        return {**item, "nested": nested, "name": str(uuid.uuid4())}
