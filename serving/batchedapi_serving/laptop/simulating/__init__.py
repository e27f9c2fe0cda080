"""`batchedapi simulate`: what a manifest would do under a load; no replica imports it."""
