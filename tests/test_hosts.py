"""Host files: each form is read for what it says, and MLX's is also written."""

from __future__ import annotations

import json

import pytest

from standfast.errors import ConfigError
from standfast.hosts import FORMATS, Host, HostFile, mlx_json, parse, parse_list, written

MESH = [
    {"ssh": "m1", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en5", ["rdma_en4", "rdma_en3"]]},
    {"ssh": "m2", "ips": ["10.0.0.2"], "rdma": ["rdma_en5", None, "rdma_en4"]},
    {"ssh": "me@m3", "ips": [], "rdma": [["rdma_en1", "rdma_en2"], "rdma_en3", None]},
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", [Host("a")]),
        ("a,b:2", [Host("a"), Host("b", 2)]),
        (" a , me@b:3 ", [Host("a"), Host("me@b", 3)]),
        ("[fd00::1],[fd00::2]:4", [Host("fd00::1"), Host("fd00::2", 4)]),
        ("me@[fe80::1%en0]:2", [Host("me@fe80::1%en0", 2)]),
    ],
)
def test_a_list(text: str, expected: list[Host]) -> None:
    """`--hosts`: each host once, in order, with the number of its ranks."""
    assert parse_list(text) == HostFile(tuple(expected))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a slots=2\nb slots=1 max_slots=4 # two\n", [Host("a", 2), Host("b")]),
        ("# hydra\n\na:2\nb:3 binding=socket\n", [Host("a", 2), Host("b", 3)]),
        ("10.0.0.1\n10.0.0.2\n", [Host("10.0.0.1"), Host("10.0.0.2")]),
        ("[fd00::1]:2\n", [Host("fd00::1", 2)]),
        ("a\nb\na\n", [Host("a"), Host("b"), Host("a")]),
    ],
)
def test_a_host_per_line(text: str, expected: list[Host]) -> None:
    """Open MPI's, Hydra's and SkyPilot's files; comments and empty lines are nothing."""
    assert parse(text, name="hosts").hosts == tuple(expected)


def test_mlx_in_both_forms() -> None:
    """The list, and the object around it with backend and variables; unknown keys are no matter."""
    bare = parse(json.dumps(MESH), name="hosts.json")
    assert [host.ssh for host in bare.hosts] == ["m1", "m2", "me@m3"]
    assert bare.hosts[0].ips == ("10.0.0.1",)
    assert bare.hosts[0].rdma == ((), ("rdma_en5",), ("rdma_en4", "rdma_en3"))
    around = {"backend": "jaccl", "envs": ["A=1=2"], "hosts": MESH, "later": {}}
    whole = parse(json.dumps(around), name="hosts.json")
    assert whole == HostFile(bare.hosts, "jaccl", ("A=1=2",))


def test_mlx_is_written_as_it_was_read() -> None:
    """Both forms, byte for byte in their values; several ranks of a host become several entries."""
    assert json.loads(mlx_json(parse(json.dumps(MESH), name="x"))) == MESH
    around = {"backend": "ring", "envs": ["A=1"], "hosts": [{"ssh": "a", "ips": ["10.0.0.1"]}]}
    assert json.loads(mlx_json(parse(json.dumps(around), name="x"))) == around
    written = mlx_json(parse_list("a:2,b"))
    assert [entry["ssh"] for entry in json.loads(written)] == ["a", "a", "b"]
    assert parse(written, name="x").ranks() == (
        Host("a"),
        Host("a"),
        Host("b"),
    )


def test_ranks_follow_the_hosts() -> None:
    """Rank r runs on the r-th host, counting each as often as it has ranks."""
    assert [host.ssh for host in parse_list("a:2,b,a").ranks()] == ["a", "a", "b", "a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["hosts names no host"]),
        ("# nothing\n", ["names no host"]),
        ("a slots=0", ["line 1", "'0'", "from 1 to"]),
        ("a\nb slots=x", ["line 2", "'x'"]),
        ("a 4", ["line 1", "'4' is not understood"]),
        ("fd00::1", ["ambiguous", "brackets"]),
        ("-oProxyCommand=x", ["'-oProxyCommand=x' is not the name"]),
        ("[{", ["hosts is not JSON"]),
        ("[]", ["names no host"]),
        ("{}", ["names no host"]),
        ('[{"ips": []}]', ["host 0", '"ssh"']),
        ('[{"ssh": ""}]', ["host 0: ssh"]),
        ('[{"ssh": "-x"}]', ["host 0: ssh", "'-x'"]),
        ('[{"ssh": "a b"}]', ["'a b' is not the name"]),
        ('[{"ssh": "a", "ips": "10.0.0.1"}]', ["host 0: ips", "not a list"]),
        ('[{"ssh": "a", "slots": true}]', ["host 0: slots", "True"]),
        ('{"hosts": [{"ssh": "a"}], "envs": ["=1"]}', ["'=1'", "NAME=value"]),
        ('{"hosts": [{"ssh": "a"}], "backend": 1}', ["backend=1"]),
        ('[{"ssh": "a", "rdma": [null, "x"]}]', ["host 0 (a)", "2 entries", "1 hosts"]),
        ('[{"ssh": "a", "rdma": ["x"]}]', ["host 0 (a)", "rdma[0] is itself"]),
        ('[{"ssh": "a", "rdma": [5]}]', ["host 0: rdma[0]=5"]),
    ],
)
def test_what_is_wrong_is_named(text: str, words: list[str]) -> None:
    """The file, the place in it, and the value."""
    with pytest.raises(ConfigError) as caught:
        parse(text, name="hosts")
    for word in words:
        assert word in str(caught.value)


def test_a_cable_with_one_end_is_named() -> None:
    """Both hosts, the devices and the empty cell."""
    mesh = json.loads(json.dumps(MESH))
    mesh[1]["rdma"][0] = None
    with pytest.raises(
        ConfigError, match=r"host 0 \(m1\) has rdma_en5 to host 1 \(m2\).*rdma\[0\]"
    ):
        parse(json.dumps(mesh), name="x")


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:b", "a:", ":2", "a b"])
def test_a_list_that_is_wrong(text: str) -> None:
    """The option and its whole value."""
    with pytest.raises(ConfigError, match="--hosts"):
        parse_list(text)


def test_rdma_is_per_host() -> None:
    """MLX has no form for several ranks on a host with RDMA devices."""
    pair = (Host("a", 2, rdma=((), ("x",))), Host("b", 1, rdma=(("y",), ())))
    with pytest.raises(ValueError, match="one rank"):
        mlx_json(HostFile(pair))


@pytest.mark.parametrize(
    "text",
    ["a slots=2\nb\n", "a:2\nb:1\n", "10.0.0.1\n10.0.0.2\n", "me@[fd00::1]:2\n", '[{"ssh": "a"}]'],
)
@pytest.mark.parametrize("form", FORMATS)
def test_each_form_becomes_each_other(text: str, form: str) -> None:
    """What is written has the same ranks on the same hosts, and is written the same again."""
    file = parse(text, name="x")
    first = written(file, form)
    again = parse(first, name="y")
    assert [host.ssh for host in again.ranks()] == [host.ssh for host in file.ranks()]
    assert written(parse(first, name="y"), form) == first


@pytest.mark.parametrize("around", [{}, {"backend": "jaccl"}, {"envs": ["A=1"]}])
def test_mlx_is_read_back(around: dict[str, object]) -> None:
    """Both of MLX's forms lose nothing on the way through."""
    file = parse(json.dumps({**around, "hosts": MESH}), name="x")
    assert parse(written(file, "mlx"), name="y") == file
    assert written(file, "mlx").startswith("{" if around else "[")


@pytest.mark.parametrize("form", ["openmpi", "hydra"])
def test_what_a_form_has_no_place_for(form: str) -> None:
    """It is named, not dropped."""
    with pytest.raises(ConfigError, match="no place for ips, rdma, envs"):
        written(HostFile(parse(json.dumps(MESH), name="x").hosts, envs=("A=1",)), form)
