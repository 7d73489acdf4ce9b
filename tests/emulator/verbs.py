"""The verbs API through ctypes: what tests, and the JACCL rank, drive a library with.

Written from the layouts in jaccl_rank's contract, not from core/fabric/verbs/abi.h, so that neither
can hide the other's mistake. `Link` is one queue pair with a region of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOCAL_WRITE = 1
RC, UC = 2, 3
SEND, SIGNALED = 2, 2
RESET, INIT, RTR, RTS, ERR = 0, 1, 2, 3, 6
ACTIVE, DOWN = 4, 1
OPS_POLL_CQ, OPS_REQ_NOTIFY, OPS_POST_SEND, OPS_POST_RECV = 96, 104, 208, 216
STATE, ACCESS, PKEY, PORT = 1, 1 << 3, 1 << 4, 1 << 5
AV, MTU, TIMEOUT, RETRY, RNR = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11
RQ_PSN, RD_ATOMIC, MIN_RNR = 1 << 12, 1 << 13, 1 << 15
SQ_PSN, DEST_RD_ATOMIC, DEST_QPN = 1 << 16, 1 << 17, 1 << 20
SUCCESS, LENGTH_ERROR, PROTECTION_ERROR, FLUSHED = 0, 1, 4, 5
RETRY_EXCEEDED, RNR_EXCEEDED, GENERAL_ERROR = 12, 13, 21
WC_RECV = 128

u8, u16, u32, u64, i32 = (
    ctypes.c_uint8,
    ctypes.c_uint16,
    ctypes.c_uint32,
    ctypes.c_uint64,
    ctypes.c_int32,
)
pointer = ctypes.c_void_p


class Gid(ctypes.Union):
    _fields_ = [("raw", u8 * 16), ("words", u64 * 2)]


class GidEntry(ctypes.Structure):
    _fields_ = [
        ("gid", Gid),
        *((name, u32) for name in ("gid_index", "port_num", "gid_type", "ifindex")),
    ]


class Sge(ctypes.Structure):
    _fields_ = [("addr", u64), ("length", u32), ("lkey", u32)]


class RecvWr(ctypes.Structure):
    _fields_ = [
        ("wr_id", u64),
        ("next", pointer),
        ("sg_list", ctypes.POINTER(Sge)),
        ("num_sge", i32),
    ]


class SendWr(ctypes.Structure):
    _fields_ = [
        ("wr_id", u64),
        ("next", pointer),
        ("sg_list", ctypes.POINTER(Sge)),
        ("num_sge", i32),
        ("opcode", i32),
        ("send_flags", u32),
        ("imm_data", u32),
        ("rest", u64 * 11),
    ]


class Wc(ctypes.Structure):
    _fields_ = [
        ("wr_id", u64),
        ("status", i32),
        ("opcode", i32),
        ("vendor_err", u32),
        ("byte_len", u32),
        ("imm_data", u32),
        ("qp_num", u32),
        ("src_qp", u32),
        ("wc_flags", u32),
        ("pkey_index", u16),
        ("slid", u16),
        ("sl", u8),
        ("dlid_path_bits", u8),
    ]


class QpCap(ctypes.Structure):
    _fields_ = [(name, u32) for name in ("send_wr", "recv_wr", "send_sge", "recv_sge", "inline")]


class QpInitAttr(ctypes.Structure):
    _fields_ = [
        ("qp_context", pointer),
        ("send_cq", pointer),
        ("recv_cq", pointer),
        ("srq", pointer),
        ("cap", QpCap),
        ("qp_type", i32),
        ("sq_sig_all", i32),
    ]


class AhAttr(ctypes.Structure):
    _fields_ = [
        ("dgid", Gid),
        ("flow_label", u32),
        ("sgid_index", u8),
        ("hop_limit", u8),
        ("traffic_class", u8),
        ("pad", u8),
        ("dlid", u16),
        ("sl", u8),
        ("src_path_bits", u8),
        ("static_rate", u8),
        ("is_global", u8),
        ("port_num", u8),
        ("pad2", u8),
    ]


class QpAttr(ctypes.Structure):
    _fields_ = [
        ("qp_state", i32),
        ("cur_qp_state", i32),
        ("path_mtu", i32),
        ("path_mig_state", i32),
        ("qkey", u32),
        ("rq_psn", u32),
        ("sq_psn", u32),
        ("dest_qp_num", u32),
        ("qp_access_flags", u32),
        ("cap", QpCap),
        ("ah_attr", AhAttr),
        ("alt_ah_attr", AhAttr),
        ("pkey_index", u16),
        ("alt_pkey_index", u16),
        ("en_sqd_async_notify", u8),
        ("sq_draining", u8),
        ("max_rd_atomic", u8),
        ("max_dest_rd_atomic", u8),
        ("min_rnr_timer", u8),
        ("port_num", u8),
        ("timeout", u8),
        ("retry_cnt", u8),
        ("rnr_retry", u8),
        ("alt_port_num", u8),
        ("alt_timeout", u8),
        ("rate_limit", u32),
    ]


class PortAttr(ctypes.Structure):
    _fields_ = [
        *((name, i32) for name in ("state", "max_mtu", "active_mtu", "gid_tbl_len")),
        *((name, u32) for name in ("cap_flags", "max_msg_sz", "bad_pkey", "qkey_viol")),
        *((name, u16) for name in ("pkey_tbl_len", "lid", "sm_lid")),
        *((name, u8) for name in ("lmc", "max_vl_num", "sm_sl", "subnet_timeout")),
        *((name, u8) for name in ("init_type_reply", "active_width", "active_speed")),
        *((name, u8) for name in ("phys_state", "link_layer", "flags")),
        ("cap_flags2", u16),
    ]


class DeviceAttr(ctypes.Structure):
    _fields_ = [
        ("fw_ver", ctypes.c_char * 64),
        *((name, u64) for name in ("node_guid", "sys_image_guid", "max_mr_size", "page_sizes")),
        *((name, u32) for name in ("vendor_id", "vendor_part_id", "hw_ver")),
        *((name, i32) for name in ("max_qp", "max_qp_wr")),
        ("device_cap_flags", u32),
        *((name, i32) for name in ("max_sge", "max_sge_rd", "max_cq", "max_cqe")),
        *((name, i32) for name in ("max_mr", "max_pd")),
        ("rest", i32 * 20),
        ("max_pkeys", u16),
        ("local_ca_ack_delay", u8),
        ("phys_port_cnt", u8),
    ]


assert ctypes.sizeof(SendWr) == 128
assert ctypes.sizeof(Wc) == 48
assert ctypes.sizeof(QpInitAttr) == 64
assert ctypes.sizeof(QpAttr) == 144
assert ctypes.sizeof(PortAttr) == 52
assert QpAttr.ah_attr.offset == 56
assert QpAttr.port_num.offset == 129
assert ctypes.sizeof(DeviceAttr) == 232

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ibv_get_device_list": (ctypes.POINTER(pointer), [ctypes.POINTER(i32)]),
    "ibv_free_device_list": (None, [pointer]),
    "ibv_get_device_name": (ctypes.c_char_p, [pointer]),
    "ibv_open_device": (pointer, [pointer]),
    "ibv_close_device": (i32, [pointer]),
    "ibv_query_device": (i32, [pointer, pointer]),
    "ibv_query_port": (i32, [pointer, u8, pointer]),
    "ibv_query_gid": (i32, [pointer, u8, i32, pointer]),
    "ibv_alloc_pd": (pointer, [pointer]),
    "ibv_dealloc_pd": (i32, [pointer]),
    "ibv_reg_mr": (pointer, [pointer, pointer, ctypes.c_size_t, i32]),
    "ibv_dereg_mr": (i32, [pointer]),
    "ibv_create_cq": (pointer, [pointer, i32, pointer, pointer, i32]),
    "ibv_destroy_cq": (i32, [pointer]),
    "ibv_create_qp": (pointer, [pointer, pointer]),
    "ibv_modify_qp": (i32, [pointer, pointer, i32]),
    "ibv_query_qp": (i32, [pointer, pointer, i32, pointer]),
    "ibv_destroy_qp": (i32, [pointer]),
    "ibv_get_async_event": (i32, [pointer, pointer]),
    "ibv_create_comp_channel": (pointer, [pointer]),
    "ibv_destroy_comp_channel": (i32, [pointer]),
    "ibv_get_cq_event": (i32, [pointer, ctypes.POINTER(pointer), ctypes.POINTER(pointer)]),
    "ibv_ack_cq_events": (None, [pointer, ctypes.c_uint]),
}
POLL_CQ = ctypes.CFUNCTYPE(i32, pointer, i32, pointer)
REQ_NOTIFY = ctypes.CFUNCTYPE(i32, pointer, i32)
POST = ctypes.CFUNCTYPE(i32, pointer, pointer, ctypes.POINTER(pointer))


class VerbsError(OSError):
    """A call was refused; errno is the number that it gave."""


def load(name: str) -> ctypes.CDLL:
    """Load a verbs library by name or path."""
    library = ctypes.CDLL(name, use_errno=True)
    for function, (result, arguments) in SIGNATURES.items():
        each = getattr(library, function)
        each.restype, each.argtypes = result, arguments
    return library


def _made(call: str, result: int | None) -> int:
    if not result:
        raise VerbsError(ctypes.get_errno(), f"{call} returned NULL")
    return result


def _done(call: str, status: int) -> None:
    if status != 0:
        raise VerbsError(status, f"{call} returned {status}")


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a moment; the library reads them when it lists devices."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                del os.environ[name]
            else:
                os.environ[name] = text


class Device:
    """An open device."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        self.library = library
        self.name = name
        count = i32()
        devices = library.ibv_get_device_list(ctypes.byref(count))
        if not devices:
            raise VerbsError(ctypes.get_errno(), "ibv_get_device_list returned NULL")
        try:
            names = [library.ibv_get_device_name(devices[i]).decode() for i in range(count.value)]
            if name not in names:
                raise LookupError(f"no device {name}; there are {names}")
            self.context = _made("open_device", library.ibv_open_device(devices[names.index(name)]))
        finally:
            library.ibv_free_device_list(devices)

    def close(self) -> None:
        if self.context:
            _done("close_device", self.library.ibv_close_device(self.context))
            self.context = 0

    def port(self) -> PortAttr:
        attributes = PortAttr()
        _done("query_port", self.library.ibv_query_port(self.context, 1, ctypes.byref(attributes)))
        return attributes

    def attributes(self) -> DeviceAttr:
        attributes = DeviceAttr()
        done = self.library.ibv_query_device(self.context, ctypes.byref(attributes))
        _done("query_device", done)
        return attributes

    def gid(self, index: int) -> bytes:
        gid = Gid()
        if self.library.ibv_query_gid(self.context, 1, index, ctypes.byref(gid)) != 0:
            raise VerbsError(ctypes.get_errno(), f"query_gid {index}")
        return bytes(gid.raw)

    def gid_type(self, index: int) -> int:
        """Return 0 InfiniBand, 1 RoCE v1, 2 RoCE v2."""
        entry = GidEntry()
        size = ctypes.sizeof(GidEntry)
        call = self.library._ibv_query_gid_ex
        call.restype, call.argtypes = i32, [pointer, u32, u32, pointer, u32, ctypes.c_size_t]
        _done("query_gid_ex", call(self.context, 1, index, ctypes.byref(entry), 0, size))
        return int(entry.gid_type)

    def next_event(self) -> int:
        """Sleep until something happens to the device; return which kind of event."""
        event = (u64 * 2)()
        _done("get_async_event", self.library.ibv_get_async_event(self.context, event))
        return event[1] & 0xFFFFFFFF

    def ipv4_index(self) -> int:
        """Return the first index with an IPv4-mapped GID."""
        for index in range(self.port().gid_tbl_len):
            if self.gid(index)[:12] == bytes(10) + b"\xff\xff":
                return index
        raise LookupError(f"no IPv4-mapped GID on {self.name}")


class Link:
    """A queue pair with its completion queue and `bytes_total` of registered memory."""

    def __init__(
        self,
        device: Device,
        bytes_total: int,
        *,
        kind: int = UC,
        depth: int = 32,
        completions: int = 64,
        channel: int | None = None,
    ) -> None:
        self.device = device
        library = self.library = device.library
        self.memory: NDArray[np.uint8] = np.zeros(bytes_total, np.uint8)
        self.domain = _made("alloc_pd", library.ibv_alloc_pd(device.context))
        self.queue = self.region = self.pair = 0
        try:
            made = library.ibv_create_cq(device.context, completions, None, channel, 0)
            self.queue = _made("create_cq", made)
            self.region = _made("reg_mr", self.register(self.memory))
            self.pair = _made("create_qp", self._make_pair(kind, depth))
        except VerbsError:
            self.close()
            raise
        self.kind = kind
        self.lkey = u32.from_address(self.region + 36).value
        self.number = u32.from_address(self.pair + 52).value
        ops = {
            each: u64.from_address(device.context + each).value
            for each in (OPS_POLL_CQ, OPS_REQ_NOTIFY, OPS_POST_SEND, OPS_POST_RECV)
        }
        self._poll = POLL_CQ(ops[OPS_POLL_CQ])
        self._notify = REQ_NOTIFY(ops[OPS_REQ_NOTIFY])
        self._post_send = POST(ops[OPS_POST_SEND])
        self._post_recv = POST(ops[OPS_POST_RECV])
        self._wcs = (Wc * 16)()

    def register(self, memory: NDArray[np.uint8]) -> int | None:
        """Register memory; None if that was refused."""
        result = self.library.ibv_reg_mr(
            self.domain, memory.ctypes.data, memory.nbytes, LOCAL_WRITE
        )
        return None if result is None else int(result)

    def _make_pair(self, kind: int, depth: int) -> int | None:
        wanted = QpInitAttr(send_cq=self.queue, recv_cq=self.queue, qp_type=kind)
        wanted.cap = QpCap(send_wr=depth, recv_wr=depth, send_sge=1, recv_sge=1)
        result = self.library.ibv_create_qp(self.domain, ctypes.byref(wanted))
        return None if result is None else int(result)

    def modify(self, mask: int, **values: Any) -> int:
        """Change attributes; return what the call returned."""
        wanted = QpAttr(**values)
        return int(self.library.ibv_modify_qp(self.pair, ctypes.byref(wanted), STATE | mask))

    def query(self) -> QpAttr:
        """Return the attributes."""
        attributes, init = QpAttr(), QpInitAttr()
        done = self.library.ibv_query_qp(
            self.pair, ctypes.byref(attributes), STATE, ctypes.byref(init)
        )
        _done("query_qp", done)
        return attributes

    def to_init(self) -> None:
        _done("INIT", self.modify(PKEY | PORT | ACCESS, qp_state=INIT, port_num=1))

    def to_rtr(self, number: int, gid: bytes, *, sgid_index: int, mtu: int = 3) -> int:
        """Connect; return what the call returned."""
        route = AhAttr(sgid_index=sgid_index, hop_limit=1, is_global=1, port_num=1)
        route.dgid = Gid((u8 * 16)(*gid))
        more = DEST_RD_ATOMIC | MIN_RNR if self.kind == RC else 0
        return self.modify(
            AV | MTU | DEST_QPN | RQ_PSN | more,
            qp_state=RTR,
            ah_attr=route,
            path_mtu=mtu,
            dest_qp_num=number,
            rq_psn=7,
        )

    def to_rtr_by_lid(self, number: int, lid: int) -> int:
        """Connect on InfiniBand, without GIDs; return what the call returned."""
        more = DEST_RD_ATOMIC | MIN_RNR if self.kind == RC else 0
        return self.modify(
            AV | MTU | DEST_QPN | RQ_PSN | more,
            qp_state=RTR,
            ah_attr=AhAttr(dlid=lid, port_num=1),
            path_mtu=3,
            dest_qp_num=number,
        )

    def to_rts(self, *, timeout: int = 10, retries: int = 1, rnr: int = 7) -> None:
        more = TIMEOUT | RETRY | RNR | RD_ATOMIC if self.kind == RC else 0
        done = self.modify(
            SQ_PSN | more,
            qp_state=RTS,
            sq_psn=7,
            timeout=timeout,
            retry_cnt=retries,
            rnr_retry=rnr,
        )
        _done("RTS", done)

    def connect(self, number: int, gid: bytes, /, **options: int) -> None:
        """Go from RESET to RTS, towards a queue pair and the GID of its port."""
        self.to_init()
        _done("RTR", self.to_rtr(number, gid, sgid_index=self.device.ipv4_index()))
        self.to_rts(**options)

    def post_receive(self, offset: int, size: int, wr_id: int = 0, lkey: int | None = None) -> int:
        """Post memory[offset:offset + size]; return what the call returned."""
        sge = Sge(self.memory.ctypes.data + offset, size, self.lkey if lkey is None else lkey)
        request = RecvWr(wr_id=wr_id, sg_list=ctypes.pointer(sge), num_sge=1)
        bad = pointer()
        return int(self._post_recv(self.pair, ctypes.addressof(request), ctypes.byref(bad)))

    def post_send(self, offset: int, size: int, wr_id: int = 0, lkey: int | None = None) -> int:
        """Send memory[offset:offset + size]; return what the call returned."""
        sge = Sge(self.memory.ctypes.data + offset, size, self.lkey if lkey is None else lkey)
        request = SendWr(
            wr_id=wr_id, sg_list=ctypes.pointer(sge), num_sge=1, opcode=SEND, send_flags=SIGNALED
        )
        bad = pointer()
        return int(self._post_send(self.pair, ctypes.addressof(request), ctypes.byref(bad)))

    def poll(self) -> list[Wc]:
        """Return up to 16 completions."""
        found = self._poll(self.queue, 16, ctypes.addressof(self._wcs))
        if found < 0:
            raise VerbsError(found, "poll_cq")
        return [Wc.from_buffer_copy(self._wcs[i]) for i in range(found)]

    def arm(self) -> None:
        _done("req_notify_cq", self._notify(self.queue, 0))

    def wait_event(self, channel: int) -> int:
        """Sleep until a channel tells of a completion; return the completion queue."""
        queue, context = pointer(), pointer()
        told = self.library.ibv_get_cq_event(channel, ctypes.byref(queue), ctypes.byref(context))
        _done("get_cq_event", told)
        self.library.ibv_ack_cq_events(queue, 1)
        return queue.value or 0

    def wait(self, count: int = 1, *, limit_s: float = 20.0) -> list[Wc]:
        """Poll until there are `count` completions; TimeoutError says what there was."""
        until = time.monotonic() + limit_s
        found: list[Wc] = []
        while len(found) < count:
            found += self.poll()
            if time.monotonic() > until:
                had = [(each.wr_id, each.status, each.opcode) for each in found]
                raise TimeoutError(f"{len(found)} of {count} completions in {limit_s} s: {had}")
        return found

    def silence(self, span_s: float) -> bool:
        """Poll for a while; whether there was nothing."""
        until = time.monotonic() + span_s
        while time.monotonic() < until:
            if self.poll():
                return False
        return True

    def close(self) -> None:
        """Destroy everything in the right order."""
        library = self.library
        for destroy, name in (
            (library.ibv_destroy_qp, "pair"),
            (library.ibv_dereg_mr, "region"),
            (library.ibv_destroy_cq, "queue"),
            (library.ibv_dealloc_pd, "domain"),
        ):
            if handle := getattr(self, name):
                _done(destroy.__name__.removeprefix("ibv_"), destroy(handle))
                setattr(self, name, 0)


def until(condition: Callable[[], bool], *, limit_s: float = 20.0) -> None:
    """Wait for something; AssertionError if it does not come."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s"
        time.sleep(0.001)


def connect(one: Link, other: Link, /, **options: int) -> None:
    """Connect two links of one process by their devices' IPv4-mapped GIDs."""
    ends = [(each.number, each.device.gid(each.device.ipv4_index())) for each in (one, other)]
    for link, (number, gid) in zip((one, other), reversed(ends), strict=True):
        link.connect(number, gid, **options)
