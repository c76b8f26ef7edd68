"""Programs that compute gradients, from the gradient rules of the op table."""
