"""`import paddle` in a process that a script under `bireme run` or `bireme launch` has started."""

import sys

try:
    from bireme.fleet.scripts import compat
except ModuleNotFoundError as _missing:
    raise ImportError(
        f"paddle means bireme in what `bireme run` starts, but {sys.executable} cannot import it: "
        f"{_missing}. Start this process with the Python that runs bireme."
    ) from None

compat.install()
compat.become_paddle(sys.modules[__name__])
