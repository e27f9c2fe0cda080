"""Texts that users, clients and pods can hand over, and that whatever renders them must survive."""

from typing import Final

ODD_TEXTS: Final = {
    "empty": "",
    "half a surrogate": "a\ud800b\udfff",
    "nul": "a\x00b",
    "lines": "a\nb\r\nc\rd\u2028e\x85f",
    "terminal": "\x1b[2J\x1b]0;title\x07\x9b31m",
    "quotes": '"\'`\\\\"}{',
    "percent": "%s %d %(a)s {0} {a} %",
    "markup": "</script><script>alert(1)</script>&amp;<!--",
    "metrics": 'x"} 1\nbatchedapi_rows_received_total{method="predict"} 5\n# HELP a',
    "json": '{"a": [NaN, 1e999',
    "direction": "\u202egnp.exe\u2069\u200b",
    "beyond the plane": "\U0001f600\U0010ffff\ufffe",
    "combining": "e" + "\u0301" * 1000,
    "not text": b"\xff\xfe\x00".decode("latin-1"),
    "long": "x" * 100_000,
    "long, of three bytes": "\u20ac" * 100_000,
}
"""By what is odd about each."""


class Unspeakable(Exception):  # noqa: N818 - it is no error of ours
    """An exception, or any object, that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("str")

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __format__(self, spec: str) -> str:
        raise RuntimeError("format")
