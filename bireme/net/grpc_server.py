"""The gRPC shell of a server: it takes a port and carries bytes between calls and a `Handler`. No
message is understood here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from bireme.errors import BiremeError

from . import sockets
from .carriers import Handler, answers
from .grpc_options import CALL, EXCHANGE, server_options
from .ports import reserved_ports
from .security import Guarded, bind_port, certificate_fault

__all__ = ["Method", "listening", "native_methods", "unary_methods"]

GRACE = 0.3  # seconds for answers under way when the server ends
Method = Callable[[bytes, str], Awaitable[bytes]]


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """False for gRPC's traceback when a caller has left before its answer: the peer is judged
    elsewhere.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError))


logging.getLogger("grpc._cython.cygrpc").addFilter(_is_worth_logging)


def _refuse(reason: str) -> Any:
    async def refuse(requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)

    return refuse


async def _check(context: Any) -> None:
    """End the call of a peer with a certificate for something else."""
    if reason := certificate_fault(context):
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)


def native_methods(handler: Handler) -> dict[str, Any]:
    """The native protocol's methods."""

    async def call(request: bytes, context: Any) -> bytes:
        await _check(context)
        return await handler.call(request)

    async def exchange(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        await _check(context)
        async for piece in answers(handler.connect(), requests):
            yield piece

    return {
        CALL: grpc.unary_unary_rpc_method_handler(call),
        EXCHANGE: grpc.stream_stream_rpc_method_handler(exchange),
    }


def unary_methods(methods: Mapping[str, Method]) -> dict[str, Any]:
    """Plain methods, path -> coroutine of (request, peer)."""

    def wrap(method: Method) -> Any:
        async def carry(request: bytes, context: Any) -> bytes:
            await _check(context)
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
        ConfigError: the endpoint cannot be taken, or nothing would protect it.
    """
    options = server_options(silence, _is_reserved(endpoint))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=None)
    methods = _Methods(handlers, _refuse)
    server.add_generic_rpc_handlers((methods,))
    port = _bind(server, endpoint)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace=GRACE)
        if methods.called:  # calls that were cancelled; the loop must not end before their tasks
            await asyncio.wait(methods.called, timeout=GRACE)


class _Methods(Guarded):
    """Handlers by path, and the tasks of calls under way."""

    def __init__(self, handlers: Mapping[str, Any], refuse: Callable[[str], Any]) -> None:
        super().__init__(handlers, refuse)
        self.called: set[asyncio.Task[Any]] = set()

    def service(self, details: Any) -> Any:
        if (task := asyncio.current_task()) is not None:
            self.called.add(task)
            task.add_done_callback(self.called.discard)
        return super().service(details)


def _bind(server: Any, endpoint: str) -> int:
    sockets.bind(endpoint).close()  # of a port that it cannot have gRPC prints a line of its own
    if port := bind_port(server, endpoint):
        return port
    raise sockets.cannot_listen(endpoint, "the port was taken meanwhile")


def _is_reserved(endpoint: str) -> bool:
    port = endpoint.rpartition(":")[2]
    return port.isdigit() and int(port) in reserved_ports()
