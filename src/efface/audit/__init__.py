"""Audits: is it really forgotten? Readouts, attacks and the methods they are turned against."""
