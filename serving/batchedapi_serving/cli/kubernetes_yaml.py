"""YAML as kubectl reads and sends it, which is not quite as Python's reader does.

`y`, `On` and `no` are booleans, dates and `1:30` are texts, `1e3` is a number, and keys are texts.
What is null is not sent; a number without a fraction is sent as an integer.
"""

import base64
import json
import math
import re
from typing import Any, Final

import yaml

_STR: Final = "tag:yaml.org,2002:str"
_TRUE: Final = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE: Final = frozenset(
    ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
)
_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER: Final = re.compile(
    r"(?P<sign>[-+]?)(0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|0[oO]?(?P<octal>[0-7]+)"
    r"|(?P<decimal>0|[1-9][0-9]*))"
)
_BASES: Final = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INT64: Final = range(-(2**63), 2**63)
_LARGEST_SENT_WHOLE: Final = 1e21  # Go writes larger ones with an exponent


def read_documents(text: str) -> list[Any]:
    """Every document of a file as kubectl would send it; those that are empty are left out.

    Raises:
        yaml.YAMLError: it is no YAML, or what JSON has no words for.
        RecursionError: it is nested too deeply.
    """
    if text.lstrip().startswith("{"):
        try:
            return [_sent(json.loads(text))]
        except ValueError:
            pass  # YAML has braces too
    loaded = yaml.load_all(text, _Loader)
    return [_sent(document) for document in loaded if document is not None]


def _sent(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sent(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_sent(member) for member in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_SENT_WHOLE:
        value = int(value)
    if type(value) is int and value not in _INT64:
        return float(value)
    return value


class _Loader(yaml.SafeLoader):
    """With rules of its own for what is written without quotes, and for keys."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - the name is PyYAML's

    def texts_as_keys(self, node: yaml.Node) -> dict[str, Any]:
        """A mapping as JSON has it."""
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(
                None, None, "expected a mapping", node.start_mark
            )
        self.flatten_mapping(node)
        found = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            text = key if isinstance(key, str) else json.dumps(key)
            found[text] = self.construct_object(value_node, deep=True)
        return found


def _plain(loader: _Loader, node: yaml.ScalarNode) -> Any:
    """A scalar without quotes and tag."""
    text = str(loader.construct_scalar(node))
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _NOT_FINITE.fullmatch(text):
        raise yaml.constructor.ConstructorError(
            None, None, f"expected a number that JSON has, got {text}", node.start_mark
        )
    if text[0] in "+-.0123456789":
        digits = text.replace("_", "")
        if found := _INTEGER.fullmatch(digits):
            (base,) = (name for name in _BASES if found[name] is not None)
            return int(found["sign"] + found[base], _BASES[base])
        if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
            return float(digits)
    return text


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _decoded(loader: _Loader, node: yaml.ScalarNode) -> str:
    return base64.b64decode(_text(loader, node)).decode("utf-8", "replace")


def _sequence(loader: _Loader, node: yaml.SequenceNode) -> Any:
    return loader.construct_sequence(node, deep=True)


def _untagged(loader: _Loader, node: yaml.Node) -> Any:
    """A tag that nobody knows says nothing."""
    if isinstance(node, yaml.MappingNode):
        return loader.texts_as_keys(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)  # noqa: S101 - there are three kinds of nodes
    return _text(loader, node)


_PLAIN: Final = "!plain"
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<$"), ["<"])
_Loader.add_implicit_resolver(_PLAIN, re.compile(""), None)
for _tag in (_PLAIN, *(f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))):
    _Loader.add_constructor(_tag, _plain)
for _tag in ("str", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _text)
_Loader.add_constructor("tag:yaml.org,2002:binary", _decoded)
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.texts_as_keys)
_Loader.add_constructor("tag:yaml.org,2002:set", _Loader.texts_as_keys)
_Loader.add_constructor("tag:yaml.org,2002:seq", _sequence)
_Loader.add_constructor(None, _untagged)
