"""Who may call: the job's token with every gRPC call, and certificates where there are some.

A call without the token is refused by its metadata, before a byte of its message is read. What a
caller may then say is not decided here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from bireme.errors import ConfigError, ProtocolError
from bireme.job_token import FILE, TOKEN, check_address, is_same, job_token

from .tls import Certificates, bears, certificates

__all__ = [
    "Guarded",
    "bind_port",
    "certificate_fault",
    "metadata",
    "open_channel",
    "unauthenticated",
]

_KEY = "bireme-job-token"
Metadata = Sequence[tuple[str, str | bytes]]


# -- the caller's side -------------------------------------------------------------------------
def metadata() -> tuple[tuple[str, str], ...]:
    """What every call carries."""
    token = job_token()
    return ((_KEY, token),) if token else ()


def open_channel(endpoint: str, options: Sequence[tuple[str, Any]]) -> Any:
    """A channel to one endpoint; with TLS if this process has a certificate. It does not connect
    yet.
    """
    found = certificates()
    if found is None:
        return grpc.insecure_channel(endpoint, options=options)
    credentials = grpc.ssl_channel_credentials(found.authority, found.key, found.certificate)
    # Members are known by their authority; their hosts' names may be any.
    named = [*options, ("grpc.ssl_target_name_override", found.name)]
    return grpc.secure_channel(endpoint, credentials, options=named)


def unauthenticated(peer: str, detail: str) -> ProtocolError:
    """The error of a call that was turned away."""
    return ProtocolError(
        f"{peer} refused this process: {detail}",
        peer=peer,
        hint=f"every process of a job needs the same token, in {TOKEN} or {FILE}, and with TLS a "
        "certificate that bears FLAGS_tls_name",
    )


# -- the listener's side -----------------------------------------------------------------------
class Guarded(grpc.GenericRpcHandler):
    """Handlers by path for callers that show the token of this process, if it has one; `refuse`
    ends the calls of others, whatever they are.
    """

    def __init__(self, handlers: Mapping[str, Any], refuse: Callable[[str], Any]) -> None:
        self._handlers = handlers
        self._refuse = refuse
        self._token = job_token()

    def service(self, details: Any) -> Any:
        reason = _fault(details.invocation_metadata, self._token)
        if not reason:
            return self._handlers.get(details.method)
        # A handler that never reads: gRPC would take in a unary call's whole message first.
        return grpc.stream_stream_rpc_method_handler(self._refuse(reason))


def _fault(shown: Metadata, token: str) -> str:
    """What is wrong with a caller; "" if nothing is."""
    if not token:
        return ""
    values = [value for key, value in shown or () if key == _KEY]
    if not values:
        return "it shows no job token"
    return "" if is_same(values[0], token) else "it shows the token of another job"


def certificate_fault(context: Any) -> str:
    """What is wrong with the certificate of a call's peer, signed by the job's authority; "" if
    nothing is, or there is no TLS.
    """
    found = certificates()
    if found is None:
        return ""
    shown = context.auth_context()
    names = [_text(value) for value in shown.get("x509_subject_alternative_name", ())]
    common = "".join(map(_text, shown.get("x509_common_name", ())))
    if bears(names, common, found.name):
        return ""
    return f"its certificate does not bear the name {found.name!r}"


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def bind_port(server: Any, endpoint: str) -> int:
    """Add `host:port` to a gRPC server; the port, 0 if it cannot be had.

    Raises:
        ConfigError: nothing would protect it there.
    """
    check_address(endpoint)
    found = certificates()
    try:
        if found is None:
            return int(server.add_insecure_port(endpoint))
        return int(server.add_secure_port(endpoint, _server_credentials(found)))
    except RuntimeError:
        return 0


def _server_credentials(found: Certificates) -> Any:
    pairs = [(found.key, found.certificate)]
    try:
        return grpc.ssl_server_credentials(pairs, found.authority, require_client_auth=True)
    except ValueError as error:
        raise ConfigError(f"the certificate cannot be used: {error}") from None
