"""Method names and options of gRPC channels and servers, each with the trap that it avoids. Numbers
follow from the heartbeat.
"""

from typing import TypeAlias

from bireme import flags

from . import sockets
from .descriptors import claim
from .frames import PIECE

__all__ = ["CALL", "EXCHANGE", "Options", "channel_options", "server_options"]

CALL = "/bireme.Server/Call"
EXCHANGE = "/bireme.Server/Exchange"

Options: TypeAlias = list[tuple[str, int]]


def _largest_piece() -> int:
    """Bytes of one message: a header, and a piece of the payload; never a whole tensor."""
    return int(flags.get("rpc_header_kb") << 10) + 2 * PIECE


def _common(silence: float) -> Options:
    idle, patience = max(200, int(silence * 1000 / 3)), max(600, int(silence * 1000))
    largest = _largest_piece()
    return [
        ("grpc.max_send_message_length", largest),  # the default is 4 MiB
        ("grpc.max_receive_message_length", largest),
        ("grpc.keepalive_time_ms", idle),
        ("grpc.keepalive_timeout_ms", patience),  # a busy peer answers late
        ("grpc.http2.ping_timeout_ms", patience),  # without it a frozen one is noticed after 60 s
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.write_buffer_size", 2 * PIECE),
    ]


def channel_options(silence: float) -> Options:
    """Options of a trainer's channel; `silence` seconds without life end a call."""
    return [
        *_common(silence),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_http_proxy", 0),  # cluster traffic never goes through http_proxy
        ("grpc.initial_reconnect_backoff_ms", 100),  # the default grows to two minutes
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def server_options(silence: float, share_port: bool = False) -> Options:
    """Options of a server. Fluid's trainers cannot cut their messages."""
    largest = -1 if flags.get("rpc_fluid") else _largest_piece()
    return [
        *[option for option in _common(silence) if not option[0].startswith("grpc.max_")],
        ("grpc.max_send_message_length", largest),
        ("grpc.max_receive_message_length", largest),
        ("grpc.server_handshake_timeout_ms", int(sockets.GREETING_SECONDS * 1000)),  # else 120 s
        ("grpc.max_allowed_incoming_connections", claim() // 2),  # the rest is for files
        ("grpc.max_concurrent_streams", int(flags.get("rpc_calls_per_connection"))),
        ("grpc.so_reuseport", int(share_port)),  # else a second server takes half of the calls
        ("grpc.http2.min_ping_interval_without_data_ms", 100),  # else pings end in GOAWAY
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
    ]
