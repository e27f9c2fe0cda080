"""What the benchmark programs share: servers, load generators, statistics and reports."""
