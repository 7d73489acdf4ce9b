"""Real sshds on loopback, or in network namespaces: the hosts of the launcher's tests."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
UP_S = 10.0


def skip_without_sshd() -> None:
    """Skip where there is no OpenSSH server, or this user may not run one."""
    if sys.platform != "linux" or not Path(SSHD).exists() or shutil.which("ssh") is None:
        pytest.skip(f"needs Linux and OpenSSH's ssh and sshd; there is no {SSHD}")


class Sshd:
    """One host: a server with a key of its own, and a section of the client's configuration."""

    def __init__(
        self, directory: Path, name: str, address: str, enter: Sequence[str] = (), port: int = 0
    ) -> None:
        self.name = name
        self.address = address
        self.port = port or _free_port()
        self._enter = enter
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        if not (directory / "host_key").exists():
            _make_key(directory / "host_key")

    def start(self, user_key: Path) -> None:
        """Serve; returns once it answers."""
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self._directory / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress {self.address}\n"
            f"HostKey {self._directory}/host_key\nAuthorizedKeysFile {user_key}.pub\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
            "KbdInteractiveAuthentication no\nMaxStartups 100\nPerSourceMaxStartups none\n"
            "PermitUserEnvironment no\nPrintMotd no\n"
        )
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._enter, SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Serve no more; sessions that there are go on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def section(self) -> str:
        """Return what a user's ~/.ssh/config would say about this host."""
        return f"Host {self.name}\n  HostName {self.address}\n  Port {self.port}\n"


class Farm:
    """Several hosts, and the client's configuration for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = directory / "user_key"
        _make_key(self.key)
        self.hosts: dict[str, Sshd] = {}

    def add(self, name: str, address: str = "127.0.0.1", enter: Sequence[str] = ()) -> Sshd:
        """Start another host."""
        host = Sshd(self.directory / name, name, address, enter)
        host.start(self.key)
        self.hosts[name] = host
        self._write_config()
        return host

    def _write_config(self) -> None:
        sections = "".join(host.section() for host in self.hosts.values())
        common = (
            f"Host *\n  IdentityFile {self.key}\n  IdentitiesOnly yes\n"
            f"  StrictHostKeyChecking no\n  UserKnownHostsFile {self.directory}/known_hosts\n"
        )
        (self.directory / "config").write_text(sections + common)

    @property
    def ssh(self) -> str:
        """Return what --ssh is given."""
        return f"ssh -F {self.directory}/config"

    def wait_up(self, enter: Sequence[str] = ()) -> None:
        """Wait until every host lets us in."""
        for name in self.hosts:
            wait_for(lambda: self._answers(name, enter))  # noqa: B023

    def _answers(self, name: str, enter: Sequence[str]) -> bool:
        words = [*enter, *self.ssh.split(), "-o", "BatchMode=yes", name, "true"]
        done = subprocess.run(words, capture_output=True, check=False, timeout=UP_S)
        return done.returncode == 0

    def close(self) -> None:
        """Stop all."""
        for host in self.hosts.values():
            host.stop()


def farm_of_two(directory: Path) -> Iterator[Farm]:
    """Yield two hosts, host-a and host-b, and end them; skip where there is no OpenSSH server."""
    skip_without_sshd()
    farm = Farm(directory)
    for name in ("host-a", "host-b"):
        farm.add(name)
    farm.wait_up()
    yield farm
    farm.close()


def wait_for(happened: Callable[[], bool]) -> None:
    """Wait for something, but not for ever."""
    end_s = time.monotonic() + UP_S
    while not happened():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.02)


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
