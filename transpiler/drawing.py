"""Draws a split as SVG: trainers above, servers below, and what travels between them in a step.

On a server, the height of a slice is proportional to its bytes; the width of a line between a
trainer and a server is proportional to the bytes of a step.
"""

from collections.abc import Mapping
from html import escape

from .plan import Plan, Shard

__all__ = ["draw_plan"]

WIDTH, GAP, HEIGHT, TOP = 170, 40, 380, 60
TRAINER, LINKS = 34, 130  # height of a trainer; room for the lines
BELOW = 96  # room for labels and the scale
THICKEST = 16  # pixels of the widest line
SHOWN = 6  # trainers drawn one by one
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f")
GREY = "#888"


def draw_plan(plan: Plan) -> str:
    """An SVG document; slices of one parameter share a colour."""
    names = [p.param for p in plan.placements]
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    held = {e: sum(s.bytes for s in plan.owned(e)) for e in plan.cluster.endpoints}
    scale = HEIGHT / max(1, *held.values())
    columns = max(len(held), min(plan.cluster.trainers, SHOWN), 3)
    width = GAP + columns * (WIDTH + GAP)
    height = TOP + TRAINER + LINKS + HEIGHT + BELOW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{GAP}" y="24" font-size="15">{escape(_title(plan))}</text>',
        f'<text x="{GAP}" y="42">{escape(_traffic(plan))}</text>',
        *_links(plan, held, width),
        *_trainers(plan, width),
    ]
    for endpoint, left in zip(held, _columns(len(held), width), strict=True):
        parts += _server(plan, endpoint, left, scale, colour)
    return "\n".join([*parts, *_scale(scale, height), "</svg>"])


def _title(plan: Plan) -> str:
    servers, trainers = len(plan.cluster.endpoints), plan.cluster.trainers
    mode = plan.modes.server.name.lower().replace("_", " ")
    return f"{trainers} trainer(s), {servers} server(s), {mode}"


def _traffic(plan: Plan) -> str:
    out, back = (sum(way) for way in zip(*_travels(plan), strict=True))
    text = f"in a step, each trainer sends {_size(out)} of gradients and receives {_size(back)}"
    return f"{text}, and rows of sparse parameters beside" if _has_rows(plan) else text


def _has_rows(plan: Plan) -> bool:
    return bool(plan.tables) or any(s.sparse for p in plan.placements for s in p.shards)


def _travels(plan: Plan) -> list[tuple[int, int]]:
    """For each server the bytes that a trainer sends to it and receives from it in a step, without
    the rows of sparse gradients and of parameters that are looked up row by row.
    """
    remote = {p.param for p in plan.placements if p.remote}
    found = []
    for endpoint in plan.cluster.endpoints:
        owned = plan.owned(endpoint)
        out = sum(s.bytes for s in owned if not s.sparse)
        found.append((out, sum(s.bytes for s in owned if s.param not in remote)))
    return found


def _size(count: float) -> str:
    """Bytes in decimal units.

    >>> _size(950), _size(84_008), _size(2_500_000)
    ('950 B', '84 kB', '2.5 MB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} GB"


def _columns(count: int, width: int) -> list[float]:
    """The left edges of `count` boxes, spread evenly."""
    free = (width - count * WIDTH) / (count + 1)
    return [free + i * (WIDTH + free) for i in range(count)]


# -- trainers ------------------------------------------------------------------------------------
def _drawn(plan: Plan) -> list[str]:
    """The labels of the trainers' boxes; the last may stand for several."""
    count = plan.cluster.trainers
    if count <= SHOWN:
        return [f"trainer {i}" for i in range(count)]
    return [*(f"trainer {i}" for i in range(SHOWN - 1)), f"trainers {SHOWN - 1} to {count - 1}"]


def _trainers(plan: Plan, width: int) -> list[str]:
    labels = _drawn(plan)
    return [
        f'<g class="trainer"><rect x="{left:.1f}" y="{TOP}" width="{WIDTH}" height="{TRAINER}" '
        f'fill="#eee" stroke="{GREY}"/><text x="{left + WIDTH / 2:.1f}" y="{TOP + 21}" '
        f'text-anchor="middle">{label}</text></g>'
        for label, left in zip(labels, _columns(len(labels), width), strict=True)
    ]


def _links(plan: Plan, held: Mapping[str, int], width: int) -> list[str]:
    """A line per drawn trainer and server, and the bytes at the server's end."""
    trainers, servers = _columns(len(_drawn(plan)), width), _columns(len(held), width)
    travels = _travels(plan)
    most = max(1, *(out + back for out, back in travels))
    y = TOP + TRAINER
    parts = []
    for left, (out, back) in zip(servers, travels, strict=True):
        thick = THICKEST * (out + back) / most
        for start in trainers:
            parts.append(
                f'<path class="link" d="M{start + WIDTH / 2:.1f} {y}L{left + WIDTH / 2:.1f} '
                f'{y + LINKS - 24}" stroke="{GREY}" stroke-opacity="0.35" '
                f'stroke-width="{max(0.5, thick):.1f}"/>'
            )
        label = f"in {_size(out)}, out {_size(back)} per trainer and step"
        parts.append(
            f'<text x="{left + WIDTH / 2:.1f}" y="{y + LINKS - 8}" text-anchor="middle">'
            f"{label}</text>"
        )
    return parts


# -- servers -------------------------------------------------------------------------------------
def _server(
    plan: Plan, endpoint: str, left: float, scale: float, colour: Mapping[str, str]
) -> list[str]:
    """A bar that grows downwards, its slices in the order of placement."""
    top = float(TOP + TRAINER + LINKS)
    owned = plan.owned(endpoint)
    total = sum(s.bytes for s in owned)
    parts = []
    for shard in owned:
        height = shard.bytes * scale
        parts += _box(shard, left, top, height, colour[shard.param])
        top += height
    tables = f", and its rows of {len(plan.tables)} table(s)" if plan.tables else ""
    return [
        *parts,
        f'<text x="{left:.1f}" y="{top + 16:.1f}">{escape(endpoint)}</text>',
        f'<text x="{left:.1f}" y="{top + 30:.1f}">{_size(total)}{tables}</text>',
    ]


def _box(shard: Shard, left: float, top: float, height: float, colour: str) -> list[str]:
    text = f"{shard.name} {list(shard.shape)}: {shard.bytes:,} bytes"
    box = (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{WIDTH}" height="{max(height, 0.5):.1f}" '
        f'fill="{colour}" stroke="white"><title>{escape(text)}</title></rect>'
    )
    name = (
        f'<text x="{left + 4:.1f}" y="{top + height / 2 + 4:.1f}" fill="white">'
        f"{escape(shard.name)}  {_size(shard.bytes)}</text>"
    )
    return [box, name] if height >= 13 else [box]


def _scale(scale: float, height: int) -> list[str]:
    """A bar as long as a round number of bytes is high."""
    count = 1.0
    while count * 10 * scale <= HEIGHT / 2:
        count *= 10
    length, y = count * scale, height - 14
    return [
        f'<path d="M{GAP} {y - 4}v8m0 -4h{length:.1f}m0 -4v8" stroke="black" fill="none"/>',
        f'<text x="{GAP + length + 8:.1f}" y="{y + 4}">height of {_size(count)} on a server</text>',
    ]
