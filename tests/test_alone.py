"""One record at a time: in order, on one thread each, and the same whatever surrounds it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from efface.alone import one_by_one, one_thread

# Each makes the kernels of another processor run; the ways to say it are independent, so they go together.
SETTINGS = [
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2,STRICT"},
    {"MKL_CBWR": "AUTO,STRICT", "OMP_NUM_THREADS": "2"},
]
COMPANY = [
    "tests/parts/compact/test_compact_user.py::test_a_row_does_not_depend_on_the_company_it_is_computed_in",
    "tests/linear/test_projection.py::test_a_row_is_a_function_of_its_sample",
    "tests/parts/compact/test_compact_files.py::test_a_saved_model_predicts_the_same_to_the_bit",
]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_results_come_in_order_each_from_one_thread(threads: int, count: int) -> None:
    seen: set[int] = set()

    def make():  # type: ignore[no-untyped-def]
        def f(i: int) -> int:
            seen.add(torch.get_num_threads())
            return i * i

        return f

    assert list(one_by_one(make, count)) == [i * i for i in range(count)]
    assert seen == ({1} if count else set())
    assert torch.get_num_threads() == threads


def test_no_two_workers_share_what_make_made() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    inside, clashes, both = set(), [], threading.Barrier(2, timeout=10)

    def make():  # type: ignore[no-untyped-def]
        state = object()

        def f(i: int) -> None:
            clashes.append(state in inside)
            inside.add(state)
            both.wait()  # so that two are inside at once
            inside.discard(state)

        return f

    list(one_by_one(make, 10))
    torch.set_num_threads(before)
    assert not any(clashes)


def test_an_error_restores_the_threads(threads: int) -> None:
    def make():  # type: ignore[no-untyped-def]
        return lambda i: 1 // (i - 3)

    with pytest.raises(ZeroDivisionError):
        list(one_by_one(make, 10))
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="x"), one_thread():
        raise ValueError("x")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda s: " ".join(f"{k}={v}" for k, v in s.items())
)
def test_company_does_not_matter_on_other_processors_either(setting: dict[str, str]) -> None:
    """The same tests in a child process that is made to compute as another processor would."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **setting}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *COMPANY]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stdout[-3000:]
