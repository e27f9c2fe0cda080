"""`batchedapi check`: whether a model may be batched, and what batching it brings.

cli.check ── starts a process with the predictor, as `serve` would
    __main__ ── asking -> equality, timing   runs in that process
    report   ── what it found, as JSON
    advising ── sentences and the table      pure
"""
