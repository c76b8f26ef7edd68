"""Pictures of programs: DOT and SVG."""
