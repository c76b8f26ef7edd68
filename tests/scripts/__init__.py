"""Training scripts of Fluid 1.x, as people wrote them, run unedited."""
