"""Weights that were proved must be found again to the bit; others may differ by rounding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from efface.guarantee.certificates import ExactCertificate
from efface.guarantee.check import Check
from efface.parts.compact.verification import Snapshot, compare

THETA = np.array([[0.5, -1.0], [0.25, 3.0]], dtype=np.float32)
CERTIFICATE = ExactCertificate("aa", "bb", 90, 10, 1e-15)


def check(stored: np.ndarray, digest: str, claimed: bool | None, proved: bool) -> Check:
    certificate = dataclasses.replace(CERTIFICATE, weights_proved=claimed)
    again = Snapshot("aa", "bb", THETA, proved)
    sums, weights = compare(Snapshot("aa", digest, stored, claimed), again, certificate)
    assert sums.ok
    return weights


def test_equal_digests_pass_and_say_whether_they_are_proved() -> None:
    assert check(THETA, "bb", True, True).ok
    assert "exact solution" in check(THETA, "bb", True, True).detail
    assert "not proved" in check(THETA, "bb", False, False).detail


@pytest.mark.parametrize(
    ("claimed", "proved", "ok"),
    [(True, True, False), (True, False, True), (False, True, True), (None, True, True)],
)
def test_one_bit_off_fails_only_where_both_are_proved(
    claimed: bool | None, proved: bool, ok: bool
) -> None:
    near = THETA.copy()
    near[1, 1] = np.nextafter(near[1, 1], np.float32(4))
    assert check(near, "cc", claimed, proved).ok == ok
    assert not check(THETA * 1.001, "cc", claimed, proved).ok


def test_weights_of_an_earlier_version_may_differ_by_the_rounding_to_float32() -> None:
    assert check(THETA.astype(np.float64) * (1 + 2.0**-25), "cc", None, True).ok
