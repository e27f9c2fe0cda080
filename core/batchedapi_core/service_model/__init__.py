"""How long a batch of n rows takes, and what that means for throughput and latency."""
