"""What both user parts stand on: the tail linearised, as products (tangent) and as features (compact)."""
