"""Texts as they may be shown: more people read logs, errors and status than may know a secret.

A password is in front of the host, and what signs a link is behind its question mark.
"""

import re
from typing import Final

_URL: Final = re.compile(
    r"""
    (?P<scheme> [A-Za-z][A-Za-z0-9+.-]{0,20} :// )
    (?P<user>
        [^\s/?#"'<>\\@]* @ (?: [^\s/?#"'<>\\@]* @ )*
        # A password with a slash or a question mark, as it ought not to be: no port is behind ":".
        | (?!\[) [^\s/?#"'<>\\@:]* : (?! \d* (?: [\s/?#"'<>\\] | $ )) [^\s"'<>\\]{0,512} @
    )?
    (?P<place> [^\s?"'<>\\]* )
    (?P<query> \? [^\s"'<>\\]* )?
    """,
    re.VERBOSE,
)
_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters on which a terminal acts, and halves of surrogates; tabs and lines stay."""


def for_people(text: str) -> str:
    """A text of whoever it may be: without secrets, and each control character escaped."""
    return _CONTROL.sub(_escaped, without_secrets(text))


def _escaped(character: re.Match[str]) -> str:
    return f"\\u{ord(character[0]):04x}"


def without_secrets(text: str) -> str:
    """The text, in whose URLs users, passwords and queries are ***."""
    return _URL.sub(_shown, text) if "://" in text else text


def _shown(url: re.Match[str]) -> str:
    user = "***@" if url["user"] else ""
    query = "?***" if url["query"] else ""
    return f"{url['scheme']}{user}{url['place']}{query}"
