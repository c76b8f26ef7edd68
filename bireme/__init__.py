"""bireme: single-machine Fluid programs, made distributed. `import bireme as fluid`."""

__version__ = "0.1.0"
