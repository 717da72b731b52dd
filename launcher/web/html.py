"""The document of the page: one piece of HTML with its style, its script and, in a report, its data.

It makes requests to its own server only, and its policy (Content-Security-Policy) enforces that: no script and no style
but these two, by their hashes, and no text can become HTML (Trusted Types).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import msgspec

from launcher.system.stdout import C1_ESCAPED

SCRIPTS: Final = (
    "format",
    "header",
    "panel",
    "node_map",
    "timeline",
    "recoveries",
    "charts",
    "events",
    "actions",
    "jobs",
    "live",
)
"""The scripts, in the order in which they are joined into one module."""
ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath fill='%230072b2' d='M0 0h7v7H0z'/%3E%3Cpath fill='%23009e73' d='M9 0h7v7H9zM0 9h7v7H0z'/%3E"
    "%3Cpath fill='%23d55e00' d='M9 9h7v7H9z'/%3E%3C/svg%3E"
)


class HtmlDocument(NamedTuple):
    """HTML, and the policy under which a server sends it."""

    html: bytes
    policy: str


def document(setup: Mapping[str, Any], data: Mapping[str, Any] | None = None) -> HtmlDocument:
    """Return the page. `setup` has the `job` to show (or none: all jobs), and whether `actions` are allowed.

    With `data` (`launcher.web.page_data`) it shows only these and makes no request; the policy is then in the HTML.
    """
    html, style, script = _pieces()
    hashes = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    policy = f"default-src 'none'; {hashes}; img-src data:; base-uri 'none'; form-action 'none'"
    policy += "; require-trusted-types-for 'script'; trusted-types 'none'"
    meta = ""
    if data is None:
        policy += "; connect-src 'self'; frame-ancestors 'none'"
    else:
        meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    parts = {
        "meta": meta,
        "icon": ICON,
        "style": style,
        "setup": embedded(setup),
        "data": embedded(data),
        "script": script,
    }
    for name, text in parts.items():
        before, mark, after = html.partition(f"<!--{name}-->")
        assert mark, name
        html = f"{before}{text}{after}"
    return HtmlDocument(html.encode(), policy)


def embedded(value: object) -> str:
    """Return JSON for a script element: nothing in it ends the element or begins another one.

    It has no C1 controls either, because `elastic-ctl report --out -` can write the page to a terminal.
    """
    text = msgspec.json.encode(value).decode().translate(C1_ESCAPED)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def _pieces() -> tuple[str, str, str]:
    folder = files("launcher.web") / "static"
    scripts = (folder.joinpath("js", f"{name}.js").read_text() for name in SCRIPTS)
    return folder.joinpath("page.html").read_text(), folder.joinpath("page.css").read_text(), "\n".join(scripts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
