"""The model: core and user part together, and requests to it."""
