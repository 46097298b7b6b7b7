"""Ridge regression in closed form, by whichever matrix is the smaller one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from efface.linear.last_layer import ridge


@pytest.mark.parametrize("n", [1, 5, 8, 9, 40])
def test_both_ways_give_the_minimiser(n: int) -> None:
    """9 numbers a row: the gradient of 1/n ½‖Xθ − Y‖² + μ/2 ‖θ‖² is 0 there."""
    rng = np.random.default_rng(n)
    x, y, mu = rng.normal(size=(n, 9)), rng.normal(size=(n, 3)), 0.01
    theta = ridge(torch.from_numpy(x), torch.from_numpy(y), mu).numpy()
    expected = np.linalg.solve(x.T @ x / n + mu * np.eye(9), x.T @ y / n)
    np.testing.assert_allclose(theta, expected, rtol=1e-9, atol=1e-11)
    assert np.abs(x.T @ (x @ theta - y) / n + mu * theta).max() < 1e-12
    if n < 9:  # no row reaches beyond its own span, and rounding does not either
        outside = np.linalg.svd(x)[2][n:]
        assert np.abs(outside @ theta).max() < 1e-12


def test_of_nobody_it_is_zero() -> None:
    assert torch.equal(ridge(torch.zeros(0, 4), torch.zeros(0, 2), 0.1), torch.zeros(4, 2))
