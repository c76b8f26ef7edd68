"""A script that another launcher started, in the variables that Fluid's scripts read."""

from collections.abc import MutableMapping, Sequence

from bireme.errors import ConfigError

from ..clusters import ranks_in
from ..role_maker import Role
from .job import filled

__all__ = ["adopted"]

PORT = "PADDLE_PORT"


def adopted(arguments: Sequence[str], environ: MutableMapping[str, str]) -> tuple[str, ...]:
    """The script's arguments with placeholders filled in. Under Slurm, MPI and the like, the
    variables of PaddleCloud are added to `environ`, for scripts that read them themselves.

    A wrong environment changes nothing: a script that asks for its role hears of it.
    """
    try:
        role = Role.read(environ)
        foreign = ranks_in(environ) is not None
    except ConfigError:
        return tuple(arguments)
    if role.kind == "local":
        return tuple(arguments)
    variables = role.variables
    if foreign:  # there, PADDLE_PORT is the first one of the host
        port = {name: value for name, value in variables.items() if name == PORT}
        environ.update({**variables, **environ, **port})
    index = role.server_index if role.is_server else role.trainer_id
    return filled(arguments, variables, index)
