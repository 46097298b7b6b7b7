"""Numbers for Prometheus, in its text format. They count; they name nobody."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """What this process has done since it was started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str, int], int] = defaultdict(int)
        self._below = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    def answered(self, method: str, route: str, status: int) -> None:
        method = method if method in METHODS else "other"
        with self._lock:
            self._answers[method, route, status] += 1

    def predicted(self, seconds: float) -> None:
        place = next((i for i, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))
        with self._lock:
            self._below[place] += 1
            self._seconds += seconds

    def text(self, states: Mapping[str, int], release: int, oldest: float, next_due: float) -> str:
        """All of it, with what the desk says now."""
        with self._lock:
            return "\n".join([*self._lines(states, release, oldest, next_due), ""])

    def _lines(
        self, states: Mapping[str, int], release: int, oldest: float, next_due: float
    ) -> Iterator[str]:
        yield from _head("efface_requests", "gauge", "Requests to be forgotten, by state.")
        yield from (f'efface_requests{{state="{state}"}} {n}' for state, n in states.items())
        yield from _head("efface_release", "gauge", "The release that is served.")
        yield f"efface_release {release}"
        yield from _head("efface_oldest_open_seconds", "gauge", "Age of the oldest open request.")
        yield f"efface_oldest_open_seconds {oldest:.3f}"
        yield from _head("efface_next_deadline_seconds", "gauge", "Until the next deadline.")
        yield f"efface_next_deadline_seconds {next_due:.3f}"
        yield from _head("efface_http_responses_total", "counter", "Replies, by route and status.")
        for (method, route, status), number in sorted(self._answers.items()):
            labels = f'method="{method}",route="{route}",status="{status}"'
            yield f"efface_http_responses_total{{{labels}}} {number}"
        yield from _head("efface_prediction_seconds", "histogram", "How long predictions took.")
        total = 0
        for most, number in zip([*BUCKETS, "+Inf"], self._below, strict=True):
            total += number
            yield f'efface_prediction_seconds_bucket{{le="{most}"}} {total}'
        yield f"efface_prediction_seconds_sum {self._seconds:.6f}"
        yield f"efface_prediction_seconds_count {total}"


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
