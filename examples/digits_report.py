"""What the digits example shows at the end: a hash of the parameters, a picture of the curve."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

WIDTH, HEIGHT, MARGIN = 640, 360, 48


def parameter_hash(parameters: Iterable[tuple[str, Any]]) -> str:
    """One number for all values, in the order of their names: equal values, equal hash."""
    digest = xxhash.xxh64()
    for name, value in sorted(parameters, key=lambda item: item[0]):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def save_curve(folder: Path, losses: Sequence[float], accuracies: Sequence[float]) -> Path:
    """The curve as PNG where matplotlib is installed, otherwise as SVG."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        path = folder / "curve.svg"
        path.write_text(svg(losses, accuracies))
        return path
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    left = figure.subplots()
    left.plot(losses, color="tab:blue")
    left.set_xlabel("step")
    left.set_ylabel("loss", color="tab:blue")
    right = left.twinx()
    right.plot(accuracies, color="tab:orange")
    right.set_ylabel("accuracy of the batch", color="tab:orange")
    figure.savefig(folder / "curve.png", dpi=120)
    return folder / "curve.png"


def svg(losses: Sequence[float], accuracies: Sequence[float]) -> str:
    """Both series over the steps, the loss scaled to its largest value, accuracy from 0 to 1."""
    top = max(losses, default=1.0) or 1.0
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            f'<path d="M{MARGIN} {MARGIN / 2}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" '
            'fill="none" stroke="#888"/>',
            _line([value / top for value in losses], "#1f77b4"),
            _line(accuracies, "#ff7f0e"),
            f'<text x="{MARGIN}" y="{HEIGHT - 16}" fill="#1f77b4">loss, 0 to {top:.2f}</text>',
            f'<text x="{WIDTH / 2}" y="{HEIGHT - 16}" fill="#ff7f0e">accuracy of the batch, 0 to 1'
            f"; {len(losses)} steps</text>",
            "</svg>",
        ]
    )


def _line(values: Sequence[float], colour: str) -> str:
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 1.5 * MARGIN
    last = max(1, len(values) - 1)
    points = " ".join(
        f"{MARGIN + width * i / last:.1f},{HEIGHT - MARGIN - height * value:.1f}"
        for i, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
