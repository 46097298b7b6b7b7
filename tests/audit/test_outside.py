"""Our numbers against outside attack implementations; each test runs where its package is installed.

pip install --no-deps adversarial-robustness-toolbox six      # the attacks, TPR at an FPR
pip install privacy-estimates                                 # ε from an attack's errors
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tests.audit.scenes import shadow

from efface.audit.attacks import ATTACKS, Game, play
from efface.audit.methods import METHODS
from efface.audit.metrics import auc, chance_interval, epsilon_lower_bound, roc


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """ART. It writes a settings folder into the home directory when it is imported: give it another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        return pytest.importorskip("art.metrics.privacy", exc_type=ImportError)


@pytest.fixture(scope="module")
def games() -> dict[str, Game]:
    return {name: play(shadow(), METHODS[name]) for name in ("original", "exact")}


def outside_attack(game: Game, *, per_target: bool) -> tuple[np.ndarray, np.ndarray]:
    """ART's black-box attack on the margins: a logistic regression, trained on half of the worlds.

    ``per_target`` gives it the target as a label, so that each has a threshold of its own: the
    likelihood-ratio attack with one variance for all.
    """
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
    from art.estimators.classification import BlackBoxClassifier

    half, count = len(game.included) // 2, game.included.shape[1]
    who = np.broadcast_to(np.arange(count), game.included.shape)
    estimator = BlackBoxClassifier(lambda x: x, input_shape=(1,), nb_classes=count)
    attack = MembershipInferenceBlackBox(estimator, attack_model_type="lr")
    part = lambda values, mask: values[:half][mask][:, None]  # noqa: E731
    coins = game.included[:half]
    named = {"y": part(who, coins)[:, 0], "test_y": part(who, ~coins)[:, 0]} if per_target else {}
    attack.fit(pred=part(game.margins, coins), test_pred=part(game.margins, ~coins), **named)
    seen = {"pred": game.margins[half:].reshape(-1, 1)}
    asked = {"y": who[half:].ravel()} if per_target else {}
    scores = attack.infer(None, probabilities=True, **seen, **asked)
    return np.ravel(scores), game.included[half:].ravel()


def test_auc_and_tpr_of_the_outside_attack_are_ours(
    toolbox: ModuleType, games: dict[str, Game]
) -> None:
    """Logistic regression of one number keeps its order, so ART's curve is that of our margin attack."""
    game = games["original"]
    scores, truth = outside_attack(game, per_target=False)
    ours = game.margins[len(game.included) // 2 :].ravel()
    curve = roc(ours[truth], ours[~truth])
    assert auc(scores[truth], scores[~truth]) == pytest.approx(
        auc(ours[truth], ours[~truth]),
        abs=2e-4,  # ART's float32 makes a few ties
    )
    for fpr in (0.001, 0.01, 0.1, 0.5):
        ((reached, tpr, _),) = toolbox.get_roc_for_fpr(ours, truth.astype(int), targeted_fpr=fpr)
        assert reached <= fpr
        assert curve.tpr_at(fpr) == pytest.approx(tpr, abs=1e-12)


def test_the_outside_attack_sees_through_the_untouched_model_only(
    toolbox: ModuleType, games: dict[str, Game]
) -> None:
    scores, truth = outside_attack(games["original"], per_target=True)
    assert auc(scores[truth], scores[~truth]) > 0.9
    assert (
        ATTACKS["lira"].verdict(games["original"]).auc > auc(scores[truth], scores[~truth]) - 0.02
    )
    scores, truth = outside_attack(games["exact"], per_target=True)
    low, high = chance_interval(scores[truth], scores[~truth], confidence=0.999)
    assert low <= auc(scores[truth], scores[~truth]) <= high


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.01])
@pytest.mark.parametrize(
    ("hits", "alarms"),
    [(40, 0), (40, 1), (90, 0), (90, 60), (100, 75), (199, 1), (199, 60), (200, 0), (200, 150)],
)
def test_epsilon_from_an_attacks_errors(hits: int, alarms: int, delta: float) -> None:
    """privacy-estimates has the same Clopper–Pearson bound. It also counts attacks that are worse than
    guessing as if their answers were turned round; ours does not, so there are none here."""
    outside = pytest.importorskip("privacy_estimates", exc_type=ImportError)
    count = outside.AttackResults(FN=200 - hits, FP=alarms, TN=150 - alarms, TP=hits)
    theirs = outside.binomial_proportion.compute_eps_lo(count, delta, 0.05, "beta")
    assert epsilon_lower_bound(hits, 200, alarms, 150, delta) == pytest.approx(theirs, abs=1e-9)
