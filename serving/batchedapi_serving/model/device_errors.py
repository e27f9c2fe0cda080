"""What an exception says of memory and of the device; no framework is imported to ask."""

import re
from collections.abc import Iterator
from typing import Final

_NO_MEMORY: Final = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "HIP error: out of memory",
    "DefaultCPUAllocator: can't allocate memory",
)
"""Of a RuntimeError: what torch says without a type of its own, on a GPU and on a CPU."""
_FRAMEWORKS: Final = frozenset({
    "cupy", "cupy_backends", "jax", "jaxlib", "numba", "onnxruntime", "paddle", "pycuda",
    "tensorflow", "tensorrt", "torch", "triton",
})  # fmt: skip
"""Packages whose own exceptions are about devices, whatever their text begins with."""
_BUILTIN: Final = re.compile(r"(\(External\) )?(CUDA|HIP) (error|failure)")
"""How the text of an exception of Python's own begins that torch, CNTK or paddle raised. The text
of others may hold what a client sent."""
_LOST: Final = re.compile(
    "device-side assert|illegal memory access|launch timed out|hardware stack error"
    "|illegal instruction|misaligned address|global/shared address space"
    "|invalid program counter|unspecified launch failure|context is destroyed"
    "|uncorrectable (ECC|NVLink) error|DEVICE_LOST"
    "|CUDA_ERROR_(ASSERT|ILLEGAL_ADDRESS|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
    "|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED|CONTEXT_IS_DESTROYED"
    "|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE)"
)
"""Errors after which, by the documentation of CUDA, all further work returns the same error until
the process is ended and launched again, or the device is repaired. HIP has the same texts."""
_LONGEST_CHAIN: Final = 16


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a smaller batch might have fit (C24)."""
    if isinstance(error, MemoryError):
        return True
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True  # of torch, cupy and others, which are not imported here
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def device_lost(error: BaseException) -> BaseException | None:
    """What says that no later batch of this process can succeed: `error`, or what it came from.

    Other errors of a device, such as a launch with arguments that a row asked for, pass.
    """
    says = (link for link in _chain(error) if _is_of_device(link) and _LOST.search(str(link)))
    return next(says, None)


def _is_of_device(error: BaseException) -> bool:
    if any(kind.__module__.partition(".")[0] in _FRAMEWORKS for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError | OSError) and _BUILTIN.match(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
