"""Ranks on several hosts: real sshds on loopback, an agent on each, and what may become of them."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.sshd import Farm, farm_of_two, skip_without_sshd
from tests.launch.support import (
    Ended,
    finish,
    kill,
    lives,
    pids_in,
    python,
    run,
    run_code,
    start,
    wait_until,
)
from tests.launch.test_run_replace import in_generation, work
from tests.launch.test_run_spares import IMPORTS, SLOW_IMPORT_S, idle, spare_program

NOBODY_LIVES_S = 5.0
TELL = """
touch(sys.argv[1] + f"rank{RANK}-gen{GENERATION}", str(os.getpid()))
"""


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """Two hosts, which differ in name and port."""
    yield from farm_of_two(tmp_path_factory.mktemp("farm"))


@pytest.fixture
def options(farm: Farm) -> list[str]:
    """Two ranks on each host."""
    return ["--ssh", farm.ssh, "--hosts", "host-a:2,host-b:2"]


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def start_all(
    options: list[str], tmp_path: Path, code: str = "forever()"
) -> tuple[subprocess.Popen[bytes], list[int]]:
    """Start four ranks that say who they are, and wait until they have."""
    launcher = start(options, [*python(TELL + code), f"{tmp_path}/"])
    return launcher, pids_in(*(tmp_path / f"rank{rank}-gen1" for rank in range(4)))


def events_of(path: Path) -> list[dict[str, object]]:
    """Return the events that were written."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_on_two_hosts(options: list[str]) -> None:
    """Ranks find who they are, lines carry rank and host, and the status is the ranks' own."""
    code = """
print(RANK, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["NODE_RANK"])
sys.exit(3 if RANK == 3 else 0)
"""
    ended = run_code(options, code)
    assert ended.status == 3
    assert sorted(ended.out.splitlines()) == [
        "[r0 host-a] 0 0 2 0",
        "[r1 host-a] 1 1 2 0",
        "[r2 host-b] 2 0 2 1",
        "[r3 host-b] 3 1 2 1",
    ]
    assert ended.block[0].startswith(
        "standfast: the group failed: rank 3 on host-b failed with exit 3"
    )


def test_they_form_a_group(options: list[str]) -> None:
    """Ranks of several hosts meet at rank 0's, whose listener its agent has opened."""
    program = "import standfast; g = standfast.init(); print(g.all_sum(float(g.rank)))"
    ended = run(options, [sys.executable, "-c", program])
    assert ended.status == 0, ended.err
    assert sorted(line.split("] ")[1] for line in ended.out.splitlines()) == ["6.0"] * 4


def test_formed_again_after_a_kill(options: list[str], tmp_path: Path) -> None:
    """A rank that is killed: generation 2 is formed on the same agents, and the events tell it."""
    program = """
import os, signal, sys, time, standfast
group = standfast.init()
if group.rank == 2 and group.generation == 1:
    while '"ready"' not in open(sys.argv[1]).read():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
group.all_sum(1.0)
"""
    events = str(tmp_path / "events")
    more = ["--restarts", "2", "--events", events]
    ended = run([*options, *more], [sys.executable, "-c", program, events])
    assert ended.status == 0, ended.err
    assert "rank 2 on host-b was ended by SIGKILL" in ended.block[0]
    told = events_of(tmp_path / "events")
    assert [each["event"] for each in told] == [
        *("started", "ready", "peer_lost", "group_failed", "restarting"),
        *("started", "ready", "finished"),
    ]
    lost = told[2]
    assert (lost["rank"], lost["host"], lost["generation"]) == (2, "host-b", 1)
    again = float(str(told[6]["time"])) - float(str(told[3]["time"]))
    assert again < 10.0


def all_end_with(pids: list[int], launcher: subprocess.Popen[bytes]) -> Ended:
    """See that no rank lives 5 s from now; then collect the launcher."""
    wait_until(lambda: not any(map(lives, pids)), NOBODY_LIVES_S)
    return finish(launcher)


def test_sigkill_of_the_launcher(options: list[str], tmp_path: Path) -> None:
    """No rank on any host outlives its launcher by 5 s, and neither does an agent."""
    launcher, pids = start_all(options, tmp_path)
    agents = {parent_of(pid) for pid in pids}
    assert len(agents) == 2
    kill(launcher.pid)
    all_end_with(pids, launcher)
    wait_until(lambda: not any(map(lives, agents)), NOBODY_LIVES_S)
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()), NOBODY_LIVES_S)


def test_sigkill_of_an_agent(options: list[str], tmp_path: Path) -> None:
    """The ranks of an agent that is killed die with it; the others are formed again with them."""
    code = "sys.exit(0) if GENERATION == 2 else forever()"
    more = ["--restarts", "1", "--grace-s", "0.2"]
    launcher, pids = start_all([*options, *more], tmp_path, code)
    kill(parent_of(pids[3]))
    ended = all_end_with(pids, launcher)
    assert ended.status == 0, ended.err
    assert "rank 2 was lost with host host-b" in ended.err or "rank 3 was lost" in ended.err
    assert len(pids_in(*(tmp_path / f"rank{rank}-gen2" for rank in range(4)))) == 4


def test_the_connection_is_lost(options: list[str], tmp_path: Path) -> None:
    """When ssh is killed, the ranks at its other end die, and the launcher says which host."""
    launcher, pids = start_all([*options, "--grace-s", "0.2"], tmp_path)
    children = [int(p.name) for p in Path("/proc").glob("[0-9]*") if is_ssh(p, launcher.pid)]
    assert len(children) == 2
    kill(max(children))
    ended = all_end_with(pids, launcher)
    assert ended.status == 137
    assert "lost with host host-b" in ended.block[0]


def test_a_silent_connection(options: list[str], tmp_path: Path) -> None:
    """A launcher that is not heard of any more, though connected, costs the ranks their lives."""
    launcher, pids = start_all(options, tmp_path)
    launcher.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: not any(map(lives, pids)), NOBODY_LIVES_S)
    finally:
        launcher.send_signal(signal.SIGCONT)
    assert finish(launcher).status == 137


def is_ssh(path: Path, parent: int) -> bool:
    """Whether this is an ssh of the launcher's."""
    try:
        words = (path / "cmdline").read_bytes().split(b"\0")
        return words[0].endswith(b"ssh") and parent_of(int(path.name)) == parent
    except OSError:
        return False


def test_ctrl_c(options: list[str], tmp_path: Path) -> None:
    """Ctrl-C reaches the ranks of all hosts, and the status is 130."""
    launcher, pids = start_all(options, tmp_path)
    launcher.send_signal(signal.SIGINT)
    ended = all_end_with(pids, launcher)
    assert ended.status == 130


def test_what_a_rank_leaves_behind(options: list[str], tmp_path: Path) -> None:
    """A child that a rank leaves in its group on another host is killed there."""
    code = """
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    forever()
touch(sys.argv[1] + f"child{RANK}", str(child))
"""
    launcher, _ = start_all(options, tmp_path, code)
    children = pids_in(*(tmp_path / f"child{rank}" for rank in range(4)))
    ended = finish(launcher)
    assert ended.status == 0
    assert not any(map(lives, children))


def test_no_byte_is_lost_through_a_slow_pipe(options: list[str]) -> None:
    """Output of two hosts through a slow reader: whole lines, all of them, in each rank's order."""
    code = """
line = "x" * 9990
for number in range(250):
    print(number, line)
"""
    launcher = start(options, python(code))
    assert launcher.stdout is not None
    data = b""
    while piece := os.read(launcher.stdout.fileno(), 1 << 16):
        data += piece
        time.sleep(0.0005)
    assert finish(launcher).status == 0
    lines = data.decode().splitlines()
    for rank, host in enumerate(("host-a", "host-a", "host-b", "host-b")):
        prefix = f"[r{rank} {host}] "
        numbers = [line.split()[2] for line in lines if line.startswith(prefix)]
        assert numbers == [str(number) for number in range(250)]
    assert len(lines) == 1000
    assert {len(line.split()[3]) for line in lines} == {9990}


def test_a_host_that_is_not_there(farm: Farm) -> None:
    """Without it there is no job: status 69, and what ssh said."""
    ended = run(["--ssh", farm.ssh, "--hosts", "host-a,nowhere.invalid"], ["true"])
    assert ended.status == 69
    assert "no agent on nowhere.invalid: ssh: Could not resolve hostname" in ended.err


def test_with_fewer_ranks(farm: Farm) -> None:
    """With --min-ranks it goes on without the host, and says so."""
    hosts = ["--hosts", "host-a:2,nowhere.invalid", "--min-ranks", "2"]
    ended = run_code(["--ssh", farm.ssh, *hosts], "print(SIZE)")
    assert ended.status == 0
    assert sorted(ended.out.splitlines()) == ["[r0 host-a] 2", "[r1 host-a] 2"]
    assert "standfast: going on with 2 ranks" in ended.err


def test_a_spare_takes_a_lost_hosts_place(farm: Farm) -> None:
    """With --spares the ranks of a host that is lost run where room was kept."""
    hosts = ["--hosts", "nowhere.invalid,host-a,host-b", "--spares", "1"]
    ended = run_code(["--ssh", farm.ssh, *hosts], "print(SIZE)")
    assert ended.status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[r0 host-a] 2", "[r1 host-b] 2"]


def test_a_program_that_is_not_there(options: list[str]) -> None:
    """A program that no host has is refused with a shell's status, and nothing is left running."""
    ended = run(options, ["no-such-program-anywhere"])
    assert ended.status == 127
    assert "no-such-program-anywhere" in ended.err


def test_another_python_cannot_be_an_agent(farm: Farm) -> None:
    """What the other end says is shown when it is no agent of ours."""
    ended = run(["--ssh", farm.ssh, "--hosts", "host-a", "--python", "/bin/false"], ["true"])
    assert ended.status == 69
    assert "no agent on host-a" in ended.err


def test_fewer_and_whole_again(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A host is lost: the group goes on with 2 of 4 ranks; when it is back, the next one has 4."""
    skip_without_sshd()
    farm = Farm(tmp_path_factory.mktemp("two"))
    for name in ("host-a", "host-b"):
        farm.add(name)
    farm.wait_up()
    options = ["--ssh", farm.ssh, "--hosts", "host-a:2,host-b:2", "--min-ranks", "2"]
    options += ["--restarts", "2", "--grace-s", "0.2"]
    code = """
touch(sys.argv[1] + f"rank{RANK}-gen{GENERATION}", str(os.getpid()))
print(f"generation {GENERATION}: {SIZE} ranks", flush=True)
sys.exit(0) if GENERATION == 3 else forever()
"""
    try:
        launcher = start(options, [*python(code), f"{tmp_path}/"])
        pids = pids_in(*(tmp_path / f"rank{rank}-gen1" for rank in range(4)))
        farm.hosts["host-b"].stop()
        kill(parent_of(pids[3]))
        second = pids_in(*(tmp_path / f"rank{rank}-gen2" for rank in range(2)))
        assert not any(map(lives, pids))
        farm.hosts["host-b"].start(farm.key)
        farm.wait_up()
        kill(second[1])
        ended = finish(launcher)
    finally:
        farm.close()
    assert ended.status == 0, ended.err
    sizes = [line.split(": ")[1] for line in sorted(ended.out.splitlines(), key=str.split)]
    assert sorted(sizes) == ["2 ranks"] * 2 + ["4 ranks"] * 8
    assert "going on with 2 ranks" in ended.err


def own_config(farm: Farm, tmp_path: Path, *more: str) -> str:
    """Return an ssh command with a configuration as a user would have it, for one alias."""
    port = farm.hosts["host-a"].port
    lines = ["Host gpu", "  HostName 127.0.0.1", f"  Port {port}", f"  User {getpass.getuser()}"]
    config = tmp_path / "config"
    common = (farm.directory / "config").read_text()
    config.write_text("\n".join([*lines, *(f"  {line}" for line in more), common]))
    return f"ssh -F {config}"


@pytest.mark.parametrize("more", [(), ("ProxyJump host-b",)], ids=["alias", "jump"])
def test_the_users_configuration(farm: Farm, tmp_path: Path, more: tuple[str, ...]) -> None:
    """An alias with a port and a user, and a jump over another host, work as with ssh itself."""
    ssh = own_config(farm, tmp_path, *more)
    ended = run_code(["--ssh", ssh, "--hosts", "gpu:2"], "print(SIZE)")
    assert ended.status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[r0 gpu] 2", "[r1 gpu] 2"]


def test_a_shared_connection_of_the_users(farm: Farm, tmp_path: Path) -> None:
    """With the user's own ControlMaster, which outlives ours, the job ends as it should."""
    control = tmp_path / "m"
    shared = ("ControlMaster auto", f"ControlPath {control}", "ControlPersist 60")
    ssh = own_config(farm, tmp_path, *shared)
    try:
        for _ in range(2):
            ended = run_code(["--ssh", ssh, "--hosts", "gpu"], "print(SIZE)")
            assert (ended.status, ended.out) == (0, "[r0 gpu] 1\n"), ended.err
        assert control.exists()
    finally:
        subprocess.run([*ssh.split(), "-O", "exit", "gpu"], capture_output=True, check=False)


def test_ctrl_z_does_not_stop_it(options: list[str], tmp_path: Path) -> None:
    """A launcher that stood still would lose its hosts' ranks: it says so, and goes on."""
    launcher, pids = start_all(options, tmp_path)
    launcher.send_signal(signal.SIGTSTP)
    launcher.send_signal(signal.SIGTERM)
    ended = all_end_with(pids, launcher)
    assert ended.status == 143
    assert "standfast: not stopped: after 3.5 s the ranks on other hosts" in ended.err


def test_the_terminals_size(farm: Farm) -> None:
    """Ranks on hosts learn the size of the launcher's terminal."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 33, 77, 0, 0))
    code = 'print(os.environ["COLUMNS"], os.environ["LINES"])'
    options = ["--ssh", farm.ssh, "--hosts", "host-a"]
    try:
        launcher = start(options, python(code), stdout=theirs)
        assert finish(launcher).status == 0
        assert b"[r0 host-a]" in (text := os.read(ours, 4096))
        assert b"77 33" in text
    finally:
        os.close(ours)
        os.close(theirs)


def test_files_for_mlx_on_each_host(farm: Farm, tmp_path: Path) -> None:
    """Each host has MLX's ring with all addresses, or the devices; none is left at the end."""
    file = tmp_path / "hosts.json"
    file.write_text('[{"ssh": "host-a", "ips": ["127.0.0.1"]}, {"ssh": "host-b"}]')
    code = 'print(os.environ["MLX_HOSTFILE"], open(os.environ["MLX_HOSTFILE"]).read())'
    ended = run_code(["--ssh", farm.ssh, "--hostfile", str(file)], code)
    assert ended.status == 0, ended.err
    told = [line.split("] ", 1)[1].split(" ", 1) for line in ended.out.splitlines()]
    paths = {path for path, _ in told}
    (text,) = {text for _, text in told}
    assert len(paths) == 2
    ring = json.loads(text)
    assert [address.split(":")[0] for (address,) in ring] == ["127.0.0.1"] * 2
    assert not any(os.path.exists(path) for path in paths)


def test_devices_of_a_host_file(farm: Farm, tmp_path: Path) -> None:
    """A host file's rdma is what JACCL and fabric="verbs" find, and our own readers take it."""
    file = tmp_path / "hosts.json"
    rows = [[None, "rdma_en2"], ["rdma_en3", None]]
    hosts = [{"ssh": f"host-{name}", "rdma": row} for name, row in zip("ab", rows, strict=True)]
    file.write_text(json.dumps({"backend": "jaccl-ring", "hosts": hosts}))
    code = """
import json, os
from standfast import jaccl, settings
config = jaccl.from_env()
print(json.dumps([
    config.rank,
    [[[end.device for end in cell] for cell in row] for row in config.matrix.rows],
    config.coordinator.split(":")[0],
    config.prefer_ring,
    "MLX_HOSTFILE" in os.environ,
    settings.load({}, os.environ).devices == os.environ["JACCL_IBV_DEVICES"],
]))
"""
    ended = run(["--ssh", farm.ssh, "--hostfile", str(file)], [sys.executable, "-c", code])
    assert ended.status == 0, ended.err
    cables = [[[], ["rdma_en2"]], [["rdma_en3"], []]]
    assert sorted(json.loads(line.split("] ", 1)[1]) for line in ended.out.splitlines()) == [
        [rank, cables, "127.0.0.1", True, False, True] for rank in range(2)
    ]


@pytest.mark.parametrize("lost", ["a rank", "its agent"])
def test_a_newcomer_on_another_host(options: list[str], tmp_path: Path, lost: str) -> None:
    """--replace: the survivors of both hosts go on, and the newcomers join them from theirs."""
    more = ["--replace", "--restarts", "3", "--events", str(tmp_path / "events")]
    launcher = start([*options, *more], work(tmp_path))
    pids = in_generation(tmp_path, 1, 0, 1, 2, 3)
    kill(pids[3] if lost == "a rank" else parent_of(pids[3]))
    wait_until(lambda: all(len(list(tmp_path.glob(f"slot{slot}-in*"))) > 1 for slot in range(4)))
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    last = [line for line in ended.out.splitlines() if " of 4 in " in line]
    hosts = sorted(line.split("] ")[0].strip("[").split()[1] for line in last)
    assert hosts == ["host-a", "host-a", "host-b", "host-b"], ended.out
    names = [each["event"] for each in events_of(tmp_path / "events")]
    assert names[:2] == ["started", "ready"]
    assert names[-2:] == ["ready", "finished"]
    assert names.count("peer_lost") == (1 if lost == "a rank" else 2)
    assert "group_failed" not in names, ended.err
    assert not any(map(lives, pids))


@pytest.mark.parametrize("reform", [True, False], ids=["in process", "at a restart"])
def test_a_warm_spare_on_another_host(options: list[str], tmp_path: Path, reform: bool) -> None:
    """It waits in init() where a place was kept, and takes the one of the rank that is lost."""
    more = ["--spares", "1", "--restarts", "3", "--grace-s", "0.5"]
    more += ["--replace", "--events", str(tmp_path / "events")]
    quick = IMPORTS.replace(str(SLOW_IMPORT_S), "0")
    launcher = start([*options, *more], spare_program(tmp_path, reform=reform, imports=quick))
    ranks = in_generation(tmp_path, 1, 0, 1, 2)
    wait_until(lambda: len(idle(tmp_path, ranks)) == 1)
    (spare,) = idle(tmp_path, ranks)
    assert parent_of(spare) == parent_of(ranks[2])  # the agent of host-b
    kill(ranks[2])
    after = in_generation(tmp_path, 2, 0, 1, 2)
    assert after[2] == spare
    assert (after[:2] == ranks[:2]) is reform
    (tmp_path / "end").touch()
    ended = finish(launcher)
    assert ended.status == 0, ended.err
    assert "[spare host-b] imported" in ended.out
    assert "[r2 host-b] slot 2 is rank 2 of 3 in 2" in ended.out
    wait_until(lambda: not idle(tmp_path, []))


def test_a_host_that_goes_before_any_rank_starts(farm: Farm, tmp_path: Path) -> None:
    """It is asked again: no rank has failed, and so no restart is needed."""
    stub = tmp_path / "stub.py"
    stub.write_text(
        "import os, sys\n"
        "from standfast.launch import agent\n"
        "def _prepare(self, order):\n"
        f"    if not os.path.exists({str(tmp_path / 'gone')!r}):\n"
        f"        open({str(tmp_path / 'gone')!r}, 'w').close()\n"
        "        os._exit(9)\n"
        "    real(self, order)\n"
        "real, agent.Agent._prepare = agent.Agent._prepare, _prepare\n"
        "sys.exit(agent.main())\n"
    )
    python_there = tmp_path / "python"
    python_there.write_text(f"#!/bin/sh\nexec {sys.executable} -P {stub}\n")
    python_there.chmod(0o755)
    options = ["--ssh", farm.ssh, "--hosts", "host-a", "--python", str(python_there)]
    ended = run_code([*options, "--wait-refill-s", "20"], "print(GENERATION)")
    assert (ended.status, ended.out) == (0, "[r0 host-a] 1\n"), ended.err
    assert "asking the hosts again" in ended.err
    wait_until(lambda: not list((tmp_path / "tmp").iterdir()), NOBODY_LIVES_S)
