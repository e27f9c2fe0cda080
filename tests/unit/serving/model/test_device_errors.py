"""Exceptions after which a process is of no further use, and those of exhausted memory."""

import pytest

from batchedapi_serving.model.batch import device_lost, out_of_memory


def raised_by(module: str, name: str, text: str, base: type[Exception] = RuntimeError) -> Exception:
    """An exception of a framework's own type."""
    kind = type(name, (base,), {"__module__": module})
    error = kind(text)
    assert isinstance(error, Exception)
    return error


ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously"


@pytest.mark.parametrize(
    "error",
    [
        raised_by("torch", "AcceleratorError", ASSERT),
        RuntimeError(ASSERT),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("HIP error: unspecified launch failure"),
        RuntimeError("CUDA failure 700: an illegal memory access was encountered"),
        OSError("(External) CUDA error(700), an illegal memory access was encountered."),
        raised_by(
            "jaxlib.xla_extension", "XlaRuntimeError",
            "INTERNAL: Failed to launch CUDA kernel: fusion: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal"
            " memory access was encountered",
        ),
        raised_by(
            "onnxruntime.capi.onnxruntime_pybind11_state", "Fail",
            "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 719: unspecified launch failure ; GPU=0",
            Exception,
        ),
        raised_by(
            "cupy_backends.cuda.api.runtime", "CUDARuntimeError",
            "cudaErrorLaunchTimeout: the launch timed out and was terminated",
        ),
        raised_by(
            "numba.cuda.cudadrv.driver", "CudaAPIError",
            "[700] Call to cuMemcpyDtoH results in CUDA_ERROR_ILLEGAL_ADDRESS", Exception,
        ),
        raised_by("torch", "AcceleratorError", "CUDA error: uncorrectable ECC error encountered"),
        raised_by("torch", "AcceleratorError", "level_zero: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_after_these_the_process_is_of_no_use(error: Exception) -> None:
    """All further work of the process returns the same error."""
    assert device_lost(error) is error
    assert not out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"cannot read {ASSERT}"),
        ValueError(ASSERT),
        RuntimeError(f"cannot read {ASSERT}"),
        RuntimeError("CUDA error: invalid configuration argument"),
        raised_by("torch", "AcceleratorError", "CUDA error: invalid argument"),
        raised_by("torch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("CUDA error: out of memory"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_after_these_it_is_not(error: Exception) -> None:
    """Text that may be a client's, arguments that a row asked for, and want of memory."""
    assert device_lost(error) is None


@pytest.mark.parametrize("hidden", [False, True])
def test_what_an_error_was_turned_into_makes_no_difference(*, hidden: bool) -> None:
    """Classes translate errors; `from None` says that the first is of no interest."""
    error = ValueError("bad row")
    error.__context__ = RuntimeError(ASSERT)
    error.__suppress_context__ = hidden

    assert (device_lost(error) is None) is hidden


@pytest.mark.parametrize(
    "text", ["CUDA out of memory", "CUDA error: out of memory", "HIP out of memory"]
)
def test_memory_of_a_device_is_memory(text: str) -> None:
    """A smaller batch may fit."""
    assert out_of_memory(RuntimeError(text))
