"""What is proved: bounds, noise, certificates. Pure functions and values; nothing here computes a model."""
