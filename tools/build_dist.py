"""Builds the wheel and the source archive twice, and checks that they are the same bytes.

Archives carry the time of the last commit (SOURCE_DATE_EPOCH), or of the environment's choice. Run
by `make dist`, which installs `build`.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def main() -> None:
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _last_commit()
    first, second = _built(epoch), _built(epoch)
    if first != second:
        names = sorted(n for n in first | second if first.get(n) != second.get(n))
        sys.exit(f"not the same bytes twice: {', '.join(names)}")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    for name, data in first.items():
        (DIST / name).write_bytes(data)
        print(f"{hashlib.sha256(data).hexdigest()}  dist/{name}")


def _last_commit() -> str:
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _built(epoch: str) -> dict[str, bytes]:
    """The archives by name, built from a copy of what is under version control."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "bireme"), Path(folder, "out")
        _copy(source)
        command = [sys.executable, "-m", "build", "--outdir", str(out), str(source)]
        environ = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found = {path.name: path.read_bytes() for path in sorted(out.iterdir())}
    return {n: _dated(d, int(epoch)) if n.endswith(".tar.gz") else d for n, d in found.items()}


def _copy(target: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def _dated(archive: bytes, epoch: int) -> bytes:
    """The archive with sorted members of one time and owner, whatever the files' own are."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as old,
        gzip.GzipFile(fileobj=out, mode="wb", filename="", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda m: m.name):
            member.mtime, member.uid, member.gid = epoch, 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return out.getvalue()


if __name__ == "__main__":
    main()
