"""What the C allocator keeps of memory that is free."""

import ctypes
import logging
from typing import Final

log = logging.getLogger(__name__)

LARGE_BYTES: Final = 128 * 1024
"""Blocks from that size on are given back to the system when they are freed."""
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of malloc.h


def give_back_large_blocks() -> None:
    """Keep glibc from raising `LARGE_BYTES` to the size of whatever was freed first.

    Each TLS connection has a buffer of 256 KiB. Once one of them was closed, the next would lie on
    the heap, between smaller blocks that outlive it, and the heap could not shrink any more.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or mallopt(_MMAP_THRESHOLD, LARGE_BYTES) != 1:
        log.debug("the C library has no threshold for large blocks")
