"""Fleet of Fluid 1.x and of Paddle 2.x: role makers, strategies, optimizers, checkpoints."""
