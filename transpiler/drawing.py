"""Draws the placement as SVG: one bar per server, one box per slice with a height proportional to
its bytes.
"""

from html import escape

from .plan import Plan, Shard

__all__ = ["draw_plan"]

WIDTH, GAP, HEIGHT, TOP = 150, 30, 420, 60
COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f")


def draw_plan(plan: Plan) -> str:
    """An SVG document; slices of one parameter share a colour."""
    names = [p.param for p in plan.placements]
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    held = {e: sum(s.bytes for s in plan.owned(e)) for e in plan.cluster.endpoints}
    scale = HEIGHT / max(1, *held.values())
    parts = [
        part
        for column, endpoint in enumerate(plan.cluster.endpoints)
        for part in _server(plan, endpoint, column, scale, colour)
    ]
    width = GAP + len(held) * (WIDTH + GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + TOP + 40}" '
            'font-family="sans-serif" font-size="11">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{GAP}" y="24" font-size="15">{escape(_title(plan))}</text>',
            *parts,
            "</svg>",
        ]
    )


def _title(plan: Plan) -> str:
    servers, trainers = len(plan.cluster.endpoints), plan.cluster.trainers
    return f"{servers} server(s), {trainers} trainer(s), {plan.modes.server.name.lower()}"


def _server(
    plan: Plan, endpoint: str, column: int, scale: float, colour: dict[str, str]
) -> list[str]:
    left, bottom = GAP + column * (WIDTH + GAP), float(TOP + HEIGHT)
    total = sum(s.bytes for s in plan.owned(endpoint))
    label = f'<text x="{left}" y="{bottom + 16:.0f}">{escape(endpoint)}</text>'
    size = f'<text x="{left}" y="{bottom + 30:.0f}">{total:,} bytes</text>'
    parts = [label, size]
    for shard in plan.owned(endpoint):
        height = shard.bytes * scale
        bottom -= height
        parts += _box(shard, left, bottom, height, colour[shard.param])
    return parts


def _box(shard: Shard, left: float, top: float, height: float, colour: str) -> list[str]:
    text = f"{shard.name} {list(shard.shape)}: {shard.bytes:,} bytes"
    box = (
        f'<rect x="{left}" y="{top:.1f}" width="{WIDTH}" height="{max(height, 0.5):.1f}" '
        f'fill="{colour}" stroke="white"><title>{escape(text)}</title></rect>'
    )
    name = (
        f'<text x="{left + 4}" y="{top + height / 2 + 4:.1f}" fill="white">'
        f"{escape(shard.name)}</text>"
    )
    return [box, name] if height >= 13 else [box]
