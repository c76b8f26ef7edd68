"""A parameter server of one trainer with every way in, and a register of ranks."""

from typing import Any

from bireme.collective import membership
from bireme.collective.register import OwnRegister
from bireme.net.grpc_server import listening, native_methods, unary_methods
from bireme.net.socket_server import accepting
from bireme.pserver.rules.core import Core
from bireme.pserver.rules.members import Limits
from bireme.pserver.rules.server_spec import read_settings
from bireme.pserver.shell.fluid import FluidService
from bireme.pserver.shell.server import Server
from bireme.pserver.store.updates import Updates

from .cluster import descending, tiny_server
from .server_thread import ServerThread

__all__ = ["LiveServer", "Recorder"]

SECONDS = 5.0


class Recorder(membership.Register):
    """A register that keeps what it was asked."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.said: list[membership.Request] = []

    def handle(self, request: membership.Request, now: float) -> membership.State:
        self.said.append(request)
        return super().handle(request, now)


class LiveServer(ServerThread):
    """A server of one trainer with every way in, and a rank register, and an admin port."""

    def __init__(self) -> None:
        program, scope = tiny_server("127.0.0.1:0", 1)
        (op,) = program.global_block().ops
        settings = read_settings(op, program)
        self.updates = Updates(program, settings, scope, descending(program, scope))
        self.core = Core(settings, Limits(silence=60, farewell=0.01))
        self.service = Server(self.core, self.updates, tick=0.02)
        self.fluid = FluidService(self.service, self.updates, 1)
        self.begin()
        heard = Recorder(size=2, terms="t", silence=60, token="secret")
        self.said = heard.said
        self.register = OwnRegister("127.0.0.1:0", heard, SECONDS)

    async def _serve(self) -> None:
        service = self.service
        handlers = {**native_methods(service), **unary_methods(self.fluid.methods())}
        async with (
            accepting(service, "127.0.0.1:0", service.incarnation) as service.carriers,
            listening("127.0.0.1:0", handlers, SECONDS) as port,
        ):
            self._serving(port)
            await service.run()

    def close(self) -> None:
        self.register.close()
        super().close()
