"""The dashboard: a job in the browser, drawn with Bokeh. It reads what `telemetry` gives."""
