"""Small gradients as one payload per server. It knows routes and links, no operators."""

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from bireme.ir import Block, VarType
from bireme.rpc.codec import Value

from . import routes as r
from .link import Link

__all__ = ["stretches", "together"]

Step = Callable[[Link, Any], None]


def stretches(given: Iterable[r.Route], block: Block) -> list[tuple[bool, list[r.Route]]]:
    """Routes in order, in stretches that may be sent together (True) or may not."""
    found = groupby(given, lambda route: _is_plain(route, block))
    return [(plain, list(routes)) for plain, routes in found]


def _is_plain(route: r.Route, block: Block) -> bool:
    """Whether a route sends whole dense variables, now."""
    if not isinstance(route, r.Send) or getattr(route, "queued", False):
        return False
    vars_ = [block._find_var_recursive(part.variable) for part in route.parts]
    dense = all(var is not None and var.type == VarType.LOD_TENSOR for var in vars_)
    return dense and all(p.end is None and not getattr(p, "every", 0) for p in route.parts)


def together(routes: Iterable[r.Route]) -> Step:
    """One step for routes that send whole variables."""
    parts = [part for route in routes if isinstance(route, r.Send) for part in route.parts]
    by_server: dict[str, list[tuple[str, str]]] = {}
    for part in parts:
        by_server.setdefault(part.endpoint, []).append((part.name, part.variable))

    def send(shared: Link, env: Any) -> None:
        get = env.get
        for endpoint, wanted in by_server.items():
            found: dict[str, Value] = {name: get(variable) for name, variable in wanted}
            shared.push_all(endpoint, {n: v for n, v in found.items() if v is not None})

    return send
