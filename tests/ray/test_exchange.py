"""Calls and results between run() and its ranks, over loopback."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator

import pytest

from standfast.ray.exchange import TOKEN_BYTES, Exchange, deliver, fetch

HOST = "127.0.0.1"


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    made = Exchange(HOST, 2, b"call" * 1_000_000)
    yield made
    made.close()


def send(exchange: Exchange, rank: int, generation: int, value: object) -> None:
    data = pickle.dumps(value)
    deliver(HOST, exchange.variable(), rank=rank, generation=generation, data=data)


def test_the_call(exchange: Exchange) -> None:
    """Every rank gets all of it, as often as it asks."""
    for _ in range(2):
        assert fetch(HOST, exchange.variable()) == b"call" * 1_000_000


def test_results_come_in_the_order_of_ranks(exchange: Exchange) -> None:
    """Large ones, too."""
    send(exchange, 1, 1, b"y" * 3_000_000)
    send(exchange, 0, 1, "x")
    assert exchange.values(2, 1) == ["x", b"y" * 3_000_000]


def test_the_last_generation_counts(exchange: Exchange) -> None:
    """A result of an earlier one is neither given nor does it replace a later one."""
    send(exchange, 0, 2, "new")
    send(exchange, 0, 1, "old")
    send(exchange, 1, 1, "old")
    assert exchange.values(1, 2) == ["new"]
    with pytest.raises(KeyError, match="no result of rank 1 in generation 2"):
        exchange.values(2, 2)


def test_strangers_get_nothing(exchange: Exchange) -> None:
    """Neither the call, nor is what they send looked at."""
    port, _, token = exchange.variable().partition(":")
    wrong = f"{port}:{'00' * TOKEN_BYTES}"
    assert wrong != f"{port}:{token}"
    with pytest.raises((EOFError, OSError)):
        fetch(HOST, wrong)
    with pytest.raises((EOFError, OSError)):
        deliver(HOST, wrong, rank=0, generation=1, data=b"x")
    with pytest.raises(KeyError):
        exchange.values(1, 1)


def test_half_a_result_is_none(exchange: Exchange) -> None:
    """A rank that is lost while it sends has delivered nothing; others go on."""
    port, _, token = exchange.variable().partition(":")
    with socket.create_connection((HOST, int(port))) as line:
        line.sendall(bytes.fromhex(token) + b"!\0\0")
    send(exchange, 0, 1, 1)
    assert exchange.values(1, 1) == [1]


def test_nobody_is_there_any_more() -> None:
    """After close() callers are refused."""
    exchange = Exchange(HOST, 1, b"")
    exchange.close()
    with pytest.raises((OSError, EOFError)):
        fetch(HOST, exchange.variable())
