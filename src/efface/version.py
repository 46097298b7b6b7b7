"""The version, written here and nowhere else: pyproject.toml takes it from this line.

Asking the installed package's metadata for it would take a tenth of what `efface verify` takes.
"""

VERSION = "0.1.0"
