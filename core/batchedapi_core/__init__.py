"""Decisions: pure functions of frozen values. No I/O, no clock, no asyncio, no logging."""

from importlib.util import find_spec
from typing import Final

_module = find_spec("batchedapi_core.service_model")
COMPILED: Final = _module is not None and not str(_module.origin).endswith(".py")
"""Whether a request passes compiled modules: those of a wheel for this machine are."""
