"""`batchedapi check`: whether a model may be batched, and what batching it brings.

cli.check ── starts a process with the predictor, as `serve` would
    __main__ ── equality   runs in that process; asks, compares, times batches
    report   ── what it found, as JSON; sentences and the table
"""
