"""What the digits example shows at the end: a hash of the parameters."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash


def parameter_hash(parameters: Iterable[tuple[str, Any]]) -> str:
    """One number for all values, in the order of their names: equal values, equal hash."""
    digest = xxhash.xxh64()
    for name, value in sorted(parameters, key=lambda item: item[0]):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()
