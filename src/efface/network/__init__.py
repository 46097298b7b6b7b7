"""The frozen network: where it comes from, its core and tail, boundary activations, training."""
