"""How many replicas: rows that arrive / (93 % of what one replica serves within the target).

What one replica serves is learned from the batch histogram: the sums of batch sizes and durations
that every replica exports. `decide.step` is the whole of it, a function of values;
docs/decisions/0003 has the formulas.

    scrapes -> observe -> LoadWindow -> decide -> ScalingDecision -> explain, record
"""
