"""Prepares pages for the site: links to files outside of docs/ become their names."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`[results](../benchmarks/results/tables.txt)` as text; links between pages stay."""

    def named(found: re.Match[str]) -> str:
        label, path = found.groups()
        if path.endswith(".md") and page.file.src_uri.startswith("zh/"):
            return found[0]
        return f"`{path}`" if label == path else f"{label} (`{path}`)"

    return OUTSIDE.sub(named, markdown)
