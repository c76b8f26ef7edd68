"""The op table: one row per operator, one file per family."""
