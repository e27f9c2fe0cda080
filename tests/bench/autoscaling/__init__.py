"""Our autoscaler beside those of others, on one simulated fleet; `python tests/bench/autoscaling`.

Each module named after an autoscaler holds its decision rule, written from its source.
"""
