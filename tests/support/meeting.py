"""Whether a trainer's program and a server's fit, by the rule that the server applies to pushes."""

from bireme.ir import Program
from bireme.pserver.rules.server_spec import read_settings

__all__ = ["refused"]


def refused(trainer: Program, server: Program) -> list[str]:
    """What the trainer sends to this server that the server would refuse."""
    serve = server.global_block().ops[-1]
    settings = read_settings(serve, server)
    sent = []
    for op in trainer.global_block().ops:
        if op.type == "send":
            names = list(op.attrs.get("send_varnames", ())) or op.input("X")
            targets = list(op.attrs["epmap"])
            names = names * len(targets) if len(names) == 1 else names
            pairs = zip(names, targets, strict=True)
            sent += [name for name, where in pairs if where == settings.endpoint]
    return settings.unknown(settings.bound(name) for name in sent)
