"""From a decoded request to its answer: the queue, the lanes to the model processes, their wire."""
