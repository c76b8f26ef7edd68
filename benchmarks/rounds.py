"""What a measured script does. Runs on Python 3.7, too."""

import json
import sys
import time


def answer(facts, step, steps):
    """Print `facts`, then for each line of the input the times of `steps` calls, as JSON."""
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        print(json.dumps(times), flush=True)
