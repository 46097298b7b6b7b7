"""The engines by name."""

from __future__ import annotations

from efface.errors import EffaceError
from efface.shards.engine import Engine, HereEngine, ProcessEngine


def engine_named(spec: str, device: str = "cpu") -> Engine:
    """``here``, ``processes:4``, ``ray`` (a cluster that is running, else one on this machine) or
    ``ray://HOST:PORT``. ``device`` is where its jobs compute; they are told so themselves."""
    kind, _, rest = spec.partition(":")
    if spec == "here":
        return HereEngine()
    if kind == "processes" and rest.isdigit():
        return ProcessEngine(int(rest))
    if kind == "ray":
        from efface.shards.ray_engine import RayEngine

        return RayEngine(spec if rest else None, device)
    fix = "use here, processes:4, ray or ray://HOST:PORT."
    raise EffaceError(f"unknown engine {spec!r}.", fix)
