"""Addresses as people write them."""

from __future__ import annotations

import pytest

from standfast.endpoint import (
    Endpoint,
    derived_port,
    is_link_local,
    is_loopback,
    is_numeric,
    is_wildcard,
    parse_endpoint,
)
from standfast.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:29500", "10.0.0.1", 29500),
        ("node0.example:1", "node0.example", 1),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%eth0]:29500", "fe80::1%eth0", 29500),
        ("0.0.0.0:29500", "0.0.0.0", 29500),
    ],
)
def test_every_form_is_read_and_written_back(text: str, host: str, port: int) -> None:
    """Reading and writing are each other's inverse."""
    endpoint = parse_endpoint(text)
    assert (endpoint.host, endpoint.port) == (host, port)
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":29500",
        "host:0",
        "host:65536",
        "host:99999999999999999999",
        "host:-1",
        "host:²",
        "host:29500 ",
        "my host:29500",
        "http://host:29500",
        "[]:29500",
        "[::1:29500",
        "::1]:29500",
    ],
)
def test_what_is_no_address_is_named(text: str) -> None:
    """The message has the variable and its value."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text, name="STANDFAST_COORDINATOR")
    assert "STANDFAST_COORDINATOR" in str(caught.value)
    assert repr(text) in str(caught.value)


def test_ipv6_without_brackets_is_ambiguous() -> None:
    """The hint shows the brackets."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint("fe80::1:29500")
    assert "[fe80::1]:29500" in str(caught.value)


def test_kinds_of_addresses() -> None:
    """Names are none of them."""
    for host, numeric, wildcard, loopback, link_local in [
        ("10.0.0.1", True, False, False, False),
        ("127.0.0.1", True, False, True, False),
        ("::1", True, False, True, False),
        ("0.0.0.0", True, True, False, False),
        ("::", True, True, False, False),
        ("fe80::1%eth0", True, False, False, True),
        ("169.254.1.1", True, False, False, False),
        ("localhost", False, False, False, False),
    ]:
        found = is_numeric(host), is_wildcard(host), is_loopback(host), is_link_local(host)
        assert found == (numeric, wildcard, loopback, link_local), host


def test_derived_ports() -> None:
    """Never the launcher's own, below the system's own range, neighbours stay apart."""
    for taken in range(1, 65536):
        derived = derived_port(taken)
        assert derived != taken
        assert 20000 <= derived < 32768
    assert len({derived_port(taken) for taken in range(32323, 32323 + 1000)}) == 1000
    assert str(Endpoint("10.0.0.1", derived_port(29500))) == "10.0.0.1:24924"
