"""Every format of a manifest is served by a module."""

import importlib.util

from batchedapi_core.model_format import ModelFormat
from batchedapi_serving import formats
from batchedapi_serving.cli.init_from import _CODE


def test_every_format_has_a_module_and_a_class_to_write() -> None:
    """One that a manifest names and no module opens would fail in the pod."""
    for format_ in ModelFormat:
        name = f"{formats.__name__}.{formats._MODULES[format_]}"
        assert importlib.util.find_spec(name) is not None
        assert format_ in _CODE
