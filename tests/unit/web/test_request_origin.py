"""Whose requests the page answers: names that it may be asked under, and requests that pages of others cause."""

from __future__ import annotations

import pytest

from launcher.web.request_origin import host_of, is_of_another_site

NAMED = {
    "localhost": "localhost",
    "LocalHost:8080": "localhost",
    "127.0.0.1": "127.0.0.1",
    "127.0.0.1:80": "127.0.0.1",
    "[::1]": "::1",
    "[::1]:41235": "::1",
    "[0:0::0:1]:80": "::1",
    "[FD00::5]": "fd00::5",
    "login-node_2.example:80": "login-node_2.example",
    "localhost.": "localhost.",
    "127.0.0.1.evil.example": "127.0.0.1.evil.example",
}
UNNAMED = (
    "",
    " ",
    "[::1].evil.example",
    "[::1].evil.example:80",
    "[::1]evil",
    "[::1]:",
    "[::1]:80:evil",
    "[::1]:80.evil.example",
    "[::1",
    "::1",
    "[]",
    "[localhost]",
    "[127.0.0.1]",
    "[::1%eth0]",
    "[::1]\n",
    "evil.example[::1]",
    "127.0.0.1:80:evil",
    "127.0.0.1:evil",
    "127.0.0.1:",
    "127.0.0.1:123456",
    "127.0.0.1:٣",
    "localhost@evil.example",
    "evil.example@localhost",
    "localhost/",
    "localhost#",
    "localhost evil.example",
    "localhost,evil.example",
    "localhost\n",
    "ｌocalhost",
    ":80",
)


@pytest.mark.parametrize(("header", "name"), NAMED.items())
def test_a_header_names_a_host_with_or_without_a_port(header: str, name: str) -> None:
    assert host_of(header) == name


@pytest.mark.parametrize("header", UNNAMED)
def test_a_header_of_any_other_form_names_nothing(header: str) -> None:
    assert host_of(header) == ""


@pytest.mark.parametrize(
    ("site", "mode", "dest", "document", "foreign"),
    [
        ("", "", "", False, False),  # curl
        ("none", "navigate", "document", True, False),  # an address that somebody typed
        ("same-origin", "cors", "empty", False, False),
        ("same-origin", "navigate", "document", True, False),
        ("cross-site", "navigate", "document", True, False),  # a link
        ("same-site", "navigate", "document", True, False),  # a link from another port of this machine
        ("cross-site", "navigate", "document", False, True),
        ("cross-site", "navigate", "iframe", True, True),
        ("cross-site", "no-cors", "image", True, True),
        ("cross-site", "no-cors", "document", True, True),
        ("same-site", "no-cors", "empty", False, True),
        ("cross-site", "", "", False, True),
        ("Same-Origin", "cors", "empty", False, True),  # no browser writes it so
    ],
)
def test_what_a_page_of_another_site_makes_a_browser_ask_is_told_from_what_people_do(
    site: str, mode: str, dest: str, document: bool, foreign: bool
) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    sent = {name: value for name, value in headers.items() if value}
    assert is_of_another_site(sent, document=document) is foreign
