"""The job's token: what every process of a job knows, and nobody else.

A launcher makes it and gives it to its children by the environment: BIREME_JOB_TOKEN holds it, or
BIREME_JOB_TOKEN_FILE names a file that does. It never stands on a command line, in a log or in an
error. Without one a process listens on loopback only. How a token travels is not known here.
"""

import functools
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import MutableMapping

from bireme import flags
from bireme.errors import ConfigError

__all__ = [
    "FILE",
    "TOKEN",
    "check_address",
    "ensure_token",
    "is_loopback",
    "is_same",
    "job_token",
    "new_token",
]

TOKEN, FILE = "BIREME_JOB_TOKEN", "BIREME_JOB_TOKEN_FILE"
SHORTEST, LONGEST = 16, 1024  # characters; longer ones would not fit into a call's metadata


def job_token() -> str:
    """This process's token; "" if it has none.

    Raises:
        ConfigError: the file cannot be read, or what is given is no token.
    """
    token = os.environ.get(TOKEN, "").strip()
    if token:
        return _checked(token, TOKEN)
    path = os.environ.get(FILE, "")
    return _checked(_read(path), f"{FILE}={path}") if path else ""


def new_token() -> str:
    """A secret for one job."""
    return secrets.token_hex(32)


def ensure_token(environ: MutableMapping[str, str]) -> None:
    """Give `environ` a new token, unless it names one."""
    if not environ.get(TOKEN) and not environ.get(FILE):
        environ[TOKEN] = new_token()


def is_same(shown: str | bytes, token: str) -> bool:
    """Whether `shown` is the token, in a time that does not tell how much of it is right."""
    data = shown.encode(errors="replace") if isinstance(shown, str) else shown
    return hmac.compare_digest(data, token.encode())


@functools.lru_cache(maxsize=8)
def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read(LONGEST + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read the job token: {reason}", where=f"{FILE}={path}") from None


def _checked(token: str, source: str) -> str:
    if SHORTEST <= len(token) <= LONGEST and token.isascii() and token.isprintable():
        return token
    raise ConfigError(
        f"the job token must be {SHORTEST} to {LONGEST} printable ASCII characters",
        where=source,
        hint='make one: python -c "import secrets; print(secrets.token_hex(32))"',
    )


# -- where a process may listen ----------------------------------------------------------------
def check_address(endpoint: str) -> None:
    """Refuse to listen where other hosts reach us, unless only members of the job are let in.

    Raises:
        ConfigError: `host:port` is not on loopback, and there is no token, no certificate, and no
            FLAGS_insecure.
    """
    if job_token() or flags.get("tls_cert") or flags.get("insecure"):
        return
    host = endpoint.rpartition(":")[0].strip("[]")
    if not is_loopback(host):
        raise ConfigError(
            f"will not listen at {endpoint}: any host could take part in this job",
            where="there is no job token and no certificate, and the address is not on loopback",
            hint=f"give every process of the job the same secret in {TOKEN} or {FILE}; in a "
            "network that you trust, FLAGS_insecure=1 lets anybody in",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`: an address, or a name all of whose addresses are
    so.
    """
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = {str(item[4][0]) for item in socket.getaddrinfo(host or "0.0.0.0", None)}
    except OSError:
        return False
    return bool(found) and all(is_loopback(address) for address in found)
