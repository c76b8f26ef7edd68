"""Certificates of a job: TLS in which both sides show one, signed by the job's own authority.

A member is known by the authority and by one name that all certificates bear (FLAGS_tls_name); on
which host it runs does not matter. Processes of one host that talk over shared memory or Unix
sockets need none.
"""

import functools
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from bireme import flags
from bireme.errors import ConfigError

__all__ = ["Certificates", "bears", "certificates", "check_name", "context"]

FLAGS = ("tls_cert", "tls_key", "tls_ca")


class Certificates(NamedTuple):
    """PEM texts, and the name that the peer's certificate must bear."""

    certificate: bytes
    key: bytes
    authority: bytes
    name: str


def certificates() -> Certificates | None:
    """What FLAGS_tls_cert, FLAGS_tls_key and FLAGS_tls_ca name, read once; None where none is set.

    Raises:
        ConfigError: some but not all are set, or a file cannot be read.
    """
    paths = {name: str(flags.get(name)) for name in FLAGS}
    if not any(paths.values()):
        return None
    if missing := [f"FLAGS_{name}" for name, path in paths.items() if not path]:
        raise ConfigError(
            f"TLS needs {' and '.join(missing)}, too",
            hint="`bireme certs DIR` makes an authority and a certificate for tests",
        )
    certificate, key, authority = (_read(name, path) for name, path in paths.items())
    return Certificates(certificate, key, authority, str(flags.get("tls_name")))


@functools.lru_cache(maxsize=8)
def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read FLAGS_{name}={path}: {error.strerror}") from None


def context(server: bool) -> ssl.SSLContext | None:
    """How sockets are wrapped; None without certificates.

    Raises:
        ConfigError: they cannot be used.
    """
    if certificates() is None:
        return None
    return _context(server, *(str(flags.get(name)) for name in FLAGS))


@functools.lru_cache(maxsize=4)
def _context(server: bool, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_cert_chain(certificate, key)
        made.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"the certificates cannot be used: {error}") from None
    return made


# -- the name ----------------------------------------------------------------------------------
def bears(names: Iterable[str], common: str, wanted: str) -> bool:
    """Whether a certificate with these alternative names bears `wanted`; its common name counts if
    there are none. `*.` at the beginning of a name is any one label.
    """
    wanted = wanted.lower()
    any_label = "*." + wanted.partition(".")[2]
    shown = [name.lower() for name in names] or [common.lower()]
    return wanted in shown or (len(any_label) > 2 and any_label in shown)


def check_name(certificate: Mapping[str, Any] | None, wanted: str) -> None:
    """Compare the name of a certificate, as `ssl` gives it.

    Raises:
        SSLCertVerificationError: it does not bear `wanted`.
    """
    found = certificate or {}
    names = [str(value) for _, value in found.get("subjectAltName", ())]
    subject = dict(pair for part in found.get("subject", ()) for pair in part)
    if not bears(names, subject.get("commonName", ""), wanted):
        raise ssl.SSLCertVerificationError(f"the certificate does not bear the name {wanted!r}")
