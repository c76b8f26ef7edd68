"""Where a saved program takes its feeds and leaves its results.

The executor feeds and fetches by name and passes these operators by; the rows only make such a
program valid.
"""

from .table import declare

declare("feed")
declare("fetch")
