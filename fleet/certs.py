"""`bireme certs`: an authority of the job's own and one certificate, which all processes share."""

import os
from collections.abc import Iterator
from pathlib import Path

from bireme import flags
from bireme.errors import ConfigError

__all__ = ["write_certificates"]


def write_certificates(folder: Path) -> Iterator[str]:
    """Write ca.pem, cert.pem and key.pem; the settings that name them, a line each. The
    authority's own key is thrown away.

    Raises:
        ConfigError: trustme is not installed, or the folder cannot be written.
    """
    try:
        import trustme
    except ImportError:
        raise ConfigError(
            "`bireme certs` needs trustme", hint="pip install 'bireme[certs]'"
        ) from None
    authority = trustme.CA()
    made = authority.issue_cert(str(flags.get("tls_name")))
    files = {
        "ca": authority.cert_pem.bytes(),
        "cert": b"".join(blob.bytes() for blob in made.cert_chain_pems),
        "key": made.private_key_pem.bytes(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            _write(folder / f"{name}.pem", data)
    except OSError as error:
        raise ConfigError(f"cannot write certificates to {folder}: {error.strerror}") from None
    for name in files:
        yield f"export FLAGS_tls_{name}={(folder / f'{name}.pem').absolute()}"


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(opened, "wb") as file:
        file.write(data)
