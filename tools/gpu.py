"""Everything that needs a CUDA device, in one command: `make gpu`.

Brings CuPy, NCCL and cuDNN for the driver's CUDA version unless CuPy is there, runs the tests
marked gpu and the benchmarks (`benchmarks/bench_gpu.py`), and writes `benchmarks/results/gpu*.txt`.
Without a device it says so and ends well. Words after the name choose parts: operators executor
nccl allreduce resnet.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TESTS = {
    "operators": ["tests/ops/test_on_a_device.py"],
    "executor": ["tests/runtime/test_device.py"],
    "nccl": ["tests/gpu"],
}
BENCHMARKS = ("allreduce", "resnet")


def missing() -> str:
    """Why nothing can run here; empty where it can."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA driver here (nvidia-smi is not on the PATH)"
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "" if "GPU " in listed.stdout else "nvidia-smi lists no device"


def extra(report: str) -> str:
    """The extra for the CUDA version in nvidia-smi's report.

    >>> extra("Driver Version: 580.1   CUDA Version: 13.0 |"), extra("CUDA Version: 12.4")
    ('cuda13', 'cuda12')
    """
    match = re.search(r"CUDA Version:\s*(\d+)", report)
    return "cuda13" if match and int(match[1]) >= 13 else "cuda12"


def bring() -> None:
    """Install what is missing; what is there stays as it is."""
    if importlib.util.find_spec("cupy") is None:
        report = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout
        wanted = f"{ROOT}[{extra(report)}]"
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "-e", wanted], check=True)


def tests(parts: list[str]) -> bool:
    """Run the chosen tests; whether all passed. Their summary is kept."""
    ok, summary = True, []
    for part in parts:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *TESTS[part]]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "no output"
        print(done.stdout if done.returncode else last, done.stderr, flush=True)
        ok = ok and done.returncode == 0
        summary.append(f"{part:10} {last}")
    (RESULTS / "gpu_tests.txt").write_text("\n".join(summary) + "\n", "utf-8")
    return ok


def main(words: list[str]) -> int:
    chosen = words or [*TESTS, *BENCHMARKS]
    if unknown := set(chosen) - {*TESTS, *BENCHMARKS}:
        print(f"no part {', '.join(sorted(unknown))}: {', '.join([*TESTS, *BENCHMARKS])}")
        return 2
    if reason := missing():
        print(f"skipped: {reason}")
        return 0
    bring()
    picked = [part for part in TESTS if part in chosen]
    ok = tests(picked) if picked else True
    if tables := [name for name in BENCHMARKS if name in chosen]:
        bench = [sys.executable, "benchmarks/bench_gpu.py", *tables, "--save-to", str(RESULTS)]
        ok = subprocess.run(bench, cwd=ROOT, check=False).returncode == 0 and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
