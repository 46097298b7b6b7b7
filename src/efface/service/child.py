"""``python -m efface.service.child WORKSPACE [CONFIG]``: a worker that ends when its standard input does."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from efface.service.server import work


def main(words: list[str]) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's
    threading.Thread(target=_until_closed, args=(stop,), daemon=True).start()
    work(Path(words[0]), Path(words[1]) if len(words) > 1 else None, stop)


def _until_closed(stop: threading.Event) -> None:
    sys.stdin.buffer.read()
    stop.set()


if __name__ == "__main__":
    main(sys.argv[1:])
