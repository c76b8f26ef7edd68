"""Trying what may fail or end the process, and a letter for how it went.

`.` it ran, `T` the call was a TypeError, `C` the call failed in another way, `t` a type was refused
while it ran, `e` the run failed in another way, `c` the process ended. A record has a letter for
every element type, in the order of `TYPES`.
"""

import gzip
import json
import os

TYPES = "bool uint8 int8 int16 int32 int64 float16 float32 float64".split()
_OF_TYPES = ("kernel", "type", "hold")  # what an error speaks of when a type is refused


def letter_of(error, built=True):
    """The letter of an error of a run, or of a call if the program was not built."""
    if os.environ.get("SHOW"):
        print(str(error)[-600:])
    if not built:
        return "T" if isinstance(error, TypeError) else "C"
    text = str(error).split("Error Message Summary")[-1].lower()
    return "t" if any(word in text for word in _OF_TYPES) else "e"


def forked(function, *given):
    """What a generator gives in a process of its own, up to where that process ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        with os.fdopen(writer, "w") as out:
            if not os.environ.get("SHOW"):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
            for found in function(*given):
                out.write(json.dumps(found) + "\n")
                out.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as given_back:
        found = [json.loads(line) for line in given_back if line.endswith("\n")]
    os.waitpid(pid, 0)
    return found


def rows_of(trials, changes, *given):
    """A row of letters for every change: each is tried with every type.

    `trials` takes what is given and a plan, pairs of a change and a type, and yields letters.
    """
    plan = [(change, dtype) for change in changes for dtype in TYPES]
    letters = []
    while len(letters) < len(plan):
        letters += forked(trials, *given, plan[len(letters) :])
        if len(letters) < len(plan):
            letters.append("c")
    rows = [letters[i : i + len(TYPES)] for i in range(0, len(letters), len(TYPES))]
    return {" ".join(change): "".join(row) for change, row in zip(changes, rows)}  # noqa: B905


def write(path, found):
    """Write a record: compressed JSON, a line for every entry."""
    lines = [json.dumps(n) + ":" + json.dumps(found[n], sort_keys=True) for n in sorted(found)]
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        out.write(("{" + ",\n".join(lines) + "}\n").encode())


def read(path):
    """A record that was written."""
    with gzip.open(path, "rb") as given:
        return json.loads(given.read().decode())
