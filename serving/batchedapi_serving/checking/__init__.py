"""`batchedapi check`: whether a model may be batched, and what batching it brings.

cli.check ── starts a process with the predictor, as `serve` would
    __main__ ── asking -> equality   runs in that process; times batches
    report   ── what it found, as JSON
    advising ── sentences and the table      pure
"""
