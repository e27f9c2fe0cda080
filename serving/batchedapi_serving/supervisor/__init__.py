"""The parent of a replica's processes: starts and replaces them, owns socket and metrics memory.

No user code and no numpy here: its admin port answers while everything else is busy or hangs.
"""
