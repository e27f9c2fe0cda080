"""Reads what the replicas counted, lets core decide, and writes the answer."""
