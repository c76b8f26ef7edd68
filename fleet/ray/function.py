"""The script of a process that calls a function: `function.py FOLDER`.

FOLDER/call has the function and its arguments, pickled, and where the caller finds modules; what it
returns is left in FOLDER/result.
"""

import os
import sys
from pathlib import Path

import cloudpickle


def main(folder: Path) -> None:
    global __file__
    path, call = cloudpickle.loads((folder / "call").read_bytes())
    sys.path[:1] = [os.getcwd()]
    sys.path += [entry for entry in path if entry not in sys.path]
    function, arguments = cloudpickle.loads(call)
    if code := getattr(function, "__code__", None):
        __file__ = code.co_filename  # where the traceback of an error begins
    (folder / "result").write_bytes(cloudpickle.dumps(function(*arguments)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
