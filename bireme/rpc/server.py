"""The gRPC shell of a server: it takes a port and carries bytes between calls and a `Service`.

It decides nothing: no message is understood here. Port in use, and who may share one, are its
only business.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from bireme.errors import BiremeError, ConfigError

from .codec import pack
from .door import each
from .options import server_options
from .ports import reserved_ports
from .wire import Service

__all__ = ["BRIEF", "CALL", "EXCHANGE", "Method", "listening", "native_methods", "unary_methods"]

CALL = "/bireme.Server/Call"
EXCHANGE = "/bireme.Server/Exchange"
BRIEF = "/bireme.Server/Brief"  # an exchange whose pieces fit into one message each way

Method = Callable[[bytes, str], Awaitable[bytes]]


class _Handlers(grpc.GenericRpcHandler):
    """Path -> handler, with raw bytes on both sides."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def native_methods(service: Service) -> dict[str, Any]:
    """The native protocol's methods."""

    async def call(request: bytes, context: Any) -> bytes:
        return await service.call(request)

    async def exchange(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for piece in service.exchange(requests):
            yield piece

    async def brief(request: bytes, context: Any) -> bytes:
        return pack([piece async for piece in service.exchange(each(request))])

    return {
        BRIEF: grpc.unary_unary_rpc_method_handler(brief),
        CALL: grpc.unary_unary_rpc_method_handler(call),
        EXCHANGE: grpc.stream_stream_rpc_method_handler(exchange),
    }


def unary_methods(methods: Mapping[str, Method]) -> dict[str, Any]:
    """Plain methods, path -> coroutine of (request, peer)."""

    def wrap(method: Method) -> Any:
        async def carry(request: bytes, context: Any) -> bytes:
            try:
                return await method(request, context.peer())
            except BiremeError as error:
                await context.abort(grpc.StatusCode.INTERNAL, str(error))
                raise

        return grpc.unary_unary_rpc_method_handler(carry)

    return {path: wrap(method) for path, method in methods.items()}


@asynccontextmanager
async def listening(
    endpoint: str, handlers: Mapping[str, Any], silence: float
) -> AsyncIterator[int]:
    """Serve `handlers` at `endpoint` inside; gives the port. Leaving lets answers under way finish.

    Raises:
        ConfigError: the endpoint cannot be taken.
    """
    options = server_options(silence, _is_reserved(endpoint))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=None)
    server.add_generic_rpc_handlers((_Handlers(handlers),))
    port = _bind(server, endpoint)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=1.0)


def _bind(server: Any, endpoint: str) -> int:
    try:
        port = int(server.add_insecure_port(endpoint))
    except RuntimeError:
        port = 0
    if port == 0:
        raise ConfigError(
            f"cannot listen at {endpoint}",
            where="the port is in use, or the address is not this machine's",
            hint="end the process that holds the port (`ss -ltnp`), or choose another endpoint",
        ) from None
    return port


def _is_reserved(endpoint: str) -> bool:
    port = endpoint.rpartition(":")[2]
    return port.isdigit() and int(port) in reserved_ports()
