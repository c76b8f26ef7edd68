"""What scripts of Fluid's time find around them: `paddle`, its names, the modules of their day."""
