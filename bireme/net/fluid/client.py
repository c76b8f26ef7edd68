"""Calls to a server that speaks Fluid's `sendrecv.SendRecvService`: one message each way, always a
deadline.

Fluid's messages hold a whole variable, so nothing limits them here but the wire's own 2 GiB. Its
servers take no pings between calls; that is why none are sent. Nothing is retried here.
"""

from typing import Any

import grpc

from bireme.errors import DeadlineExceeded, InvalidArgument, ProtocolError
from bireme.net.carriers import Unreachable
from bireme.net.fluid import SERVICE

__all__ = ["LARGEST", "FluidCall", "FluidWire"]

LARGEST = (1 << 31) - 2  # bytes of one message
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # barriers belong to a connection: never share one
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
]


class FluidCall:
    """A call under way; `again` makes it once more."""

    def __init__(self, wire: "FluidWire", method: str, message: bytes, timeout: float) -> None:
        self._wire = wire
        self._method = method
        self._message = message
        self._timeout = timeout
        self.attempts = 0
        self.again()

    def again(self) -> None:
        self.attempts += 1
        multi = self._wire.method(self._method)
        self._future = multi.future(self._message, timeout=self._timeout)

    @property
    def done(self) -> bool:
        return bool(self._future.done())

    def cancel(self) -> None:
        self._future.cancel()

    def result(self) -> bytes:
        """The answer; empty where Fluid answers with no message at all.

        Raises:
            Unreachable: the server is not there, or the call was cancelled.
            DeadlineExceeded: it did not answer in time.
            ProtocolError: it refused.
        """
        peer = f"server {self._wire.endpoint}"
        try:
            return self._future.result() or b""
        except grpc.FutureCancelledError:
            raise Unreachable(f"{peer}: cancelled", peer=peer) from None
        except grpc.RpcError as error:
            raise _translated(error, peer, self._method) from None


def _translated(error: Any, peer: str, method: str) -> Exception:
    code, detail = error.code(), error.details()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(
            f"{peer} did not answer {method} in time",
            peer=peer,
            hint="another trainer may be missing; the time is FLAGS_rpc_deadline (milliseconds)",
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Unreachable(f"{peer}: {code.name.lower()}, {detail}", peer=peer)
    return ProtocolError(f"{peer} refused {method}: {code.name.lower()}, {detail}", peer=peer)


class FluidWire:
    """A channel to one Fluid server; opening it does not connect yet."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._channel = grpc.insecure_channel(endpoint, options=_OPTIONS)
        self._methods: dict[str, Any] = {}

    def method(self, name: str) -> Any:
        if name not in self._methods:
            self._methods[name] = self._channel.unary_unary(SERVICE + name)
        return self._methods[name]

    def start(self, method: str, message: bytes, timeout: float) -> FluidCall:
        """Begin a call.

        Raises:
            InvalidArgument: the message is larger than this wire can carry.
        """
        if len(message) > LARGEST:
            raise InvalidArgument(
                f"a message of {len(message)} bytes is too large for Fluid's wire",
                hint="let the transpiler cut variables (slice_var_up), or use bireme's servers",
            )
        return FluidCall(self, method, message, timeout)

    def close(self) -> None:
        self._channel.close()
