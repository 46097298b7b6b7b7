"""Roots of covariances: what they are, and that no bit of them depends on an order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.reference import integer_roots
from torch import Tensor

from efface.linear.matrix_root import BITS, STEPS, covariance_roots, matrix_root


def projections(places: int = 81, size: int = 6, seed: int = 0, samples: int = 3) -> Tensor:
    """Integers as a map's projections are: correlated, the first direction the strongest."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((samples, places, size)) @ rng.standard_normal((size, size))
    return torch.from_numpy(np.rint(100 * mixed / (1 + np.arange(size)))).float()


def upper(square: Tensor) -> list[float]:
    return square[np.triu_indices(len(square))].tolist()


@pytest.mark.parametrize(("places", "size"), [(81, 6), (2, 3), (162, 1), (7, 9)])
def test_it_is_that_of_python_integers(places: int, size: int) -> None:
    p = projections(places, size)
    for sample, root in zip(p, covariance_roots(p), strict=True):
        assert upper(root) == integer_roots(sample.to(torch.int64).tolist())


def test_it_is_a_root_where_directions_are_strong() -> None:
    """Eigenvalues from 1 down to 0.1 of the trace: five steps are enough for two digits."""
    q = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()).Q
    values = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    found = matrix_root((q * values @ q.T)[None] * 7.0)[0]
    torch.testing.assert_close(found, q * values.sqrt() @ q.T, rtol=0, atol=5e-3)


def test_what_does_not_vary_is_zero_and_constants_do_not_count() -> None:
    assert (covariance_roots(torch.full((1, 5, 3), 7.0)) == 0).all()
    p = projections()
    assert torch.equal(covariance_roots(p + 17), covariance_roots(p))
    assert torch.equal(covariance_roots(p * 4), covariance_roots(p))  # the trace is divided out


@pytest.mark.parametrize("size", [6, 38, 64])
def test_no_bit_depends_on_order_company_or_memory(size: int) -> None:
    p = projections(81, size, samples=4)
    want = covariance_roots(p)
    order = torch.randperm(81, generator=torch.Generator().manual_seed(1))
    assert torch.equal(covariance_roots(p[:, order]), want)
    for i in range(4):
        assert torch.equal(covariance_roots(p[i : i + 1])[0], want[i])
    turn = torch.randperm(size, generator=torch.Generator().manual_seed(2))
    turned = covariance_roots(p[:, :, turn])  # other sums, in another order
    assert torch.equal(turned, want[:, turn][:, :, turn])


def test_floats_would_depend_on_it() -> None:
    """Without rounding to multiples of 2^-20 the same turn changes bits: the test above can fail."""
    p = projections(81, 38, samples=4).double()
    turn = torch.randperm(38, generator=torch.Generator().manual_seed(2))

    def plain(p: Tensor) -> Tensor:
        c = p.transpose(1, 2) @ p * p.shape[1] - p.sum(1)[:, :, None] * p.sum(1)[:, None, :]
        one = torch.eye(p.shape[2], dtype=p.dtype)
        y, z = c / (c * one).sum((1, 2), keepdim=True), one.expand_as(c)
        for _ in range(STEPS):
            m = 1.5 * one - 0.5 * (z @ y)
            y, z = y @ m, m @ z
        return y

    found, want = plain(p[:, :, turn]), plain(p)
    assert not torch.equal(found, want[:, turn][:, :, turn])
    torch.testing.assert_close(covariance_roots(p), want, rtol=0, atol=2.0 ** (8 - BITS))


@pytest.mark.parametrize("seed", range(20))
def test_sums_stay_where_float64_is_exact(seed: int) -> None:
    """The bounds that the module's text rests on, also for what is nearly singular."""
    rng = np.random.default_rng(seed)
    rank, size = int(rng.integers(1, 5)), 40
    low = rng.standard_normal((1, 30, rank)) @ rng.standard_normal((rank, size))
    p = torch.from_numpy(np.rint(low * 10.0 ** rng.integers(0, 3))).double()
    total = p.sum(1)
    c = p.transpose(1, 2) @ p * 30 - total[:, :, None] * total[:, None, :]
    assert float(c.abs().max()) < 2.0**53
    y, z, one = c / c[0].trace(), torch.eye(size).double()[None], torch.eye(size).double()
    for _ in range(STEPS):
        assert float(y.abs().max()) <= 1 + 2.0**-10
        assert float(z.abs().max()) < 8
        assert size * 2**BITS * float(y.abs().max()) * 2**BITS * float(z.abs().max()) < 2.0**53
        m = 1.5 * one - 0.5 * (z @ y)
        assert float(m.abs().max()) < 2
        y, z = y @ m, m @ z
