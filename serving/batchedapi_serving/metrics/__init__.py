"""Counters of one replica in memory that outlives its processes: slots, who writes, the page."""
