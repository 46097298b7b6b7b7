"""The version, from the installed package's metadata: written in pyproject.toml and nowhere else."""

from importlib.metadata import version

VERSION = version("efface")
