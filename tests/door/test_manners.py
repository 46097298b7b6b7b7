"""scikit-learn's manners, as far as they fit images: its own checks, and what follows from them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.utils import estimator_checks as checks
from sklearn.utils.validation import check_is_fitted
from tests.door.places import (
    CORE,
    IMAGES,
    LABELS,
    OWNERS,
    classifier,
    digests,
    fitted,
    without_core,
)

from efface import ForgettingClassifier
from efface.errors import EffaceError

# Those of scikit-learn's checks that do not fit an estimator on a table of floats.
APPLY = [
    checks.check_do_not_raise_errors_in_init_or_set_params,
    checks.check_estimator_cloneable,
    checks.check_estimator_repr,
    checks.check_estimator_tags_renamed,
    checks.check_estimators_unfitted,
    checks.check_get_params_invariance,
    checks.check_mixin_order,
    checks.check_no_attributes_set_in_init,
    checks.check_parameters_default_constructible,
    checks.check_set_params,
    checks.check_valid_tag_types,
]


@pytest.mark.parametrize("check", APPLY, ids=lambda check: check.__name__)
def test_checks_of_scikit_learn(check: Any) -> None:
    check("ForgettingClassifier", ForgettingClassifier())


def test_fit_returns_the_classifier_and_changes_no_parameter() -> None:
    """As check_estimators_fit_returns_self, check_dont_overwrite_parameters and check_fit_idempotent."""
    clf = classifier()
    before = clf.get_params()
    assert clf.fit(IMAGES, LABELS, core=CORE) is clf
    check_is_fitted(clf)
    assert clf.get_params() == before
    first = digests(clf)
    assert digests(clf.fit(IMAGES, LABELS, core=CORE)) == first


def test_predictions_change_nothing_and_depend_on_the_image_alone() -> None:
    """As check_dict_unchanged, check_methods_subset_invariance, …_sample_order_invariance and
    check_decision_proba_consistency."""
    clf = fitted()
    before, order = dict(vars(clf)), np.random.default_rng(0).permutation(45)
    for method in (clf.predict, clf.predict_proba, clf.decision_function):
        whole = method(IMAGES)
        np.testing.assert_array_equal(whole[order], method(IMAGES[order]))
        np.testing.assert_array_equal(whole[3:5], method(IMAGES[3:5]))
    assert vars(clf) == before
    scores = clf.predict_proba(IMAGES)
    np.testing.assert_allclose(scores.sum(1), 1, atol=1e-6)  # float32
    assert clf.classes_[scores.argmax(1)].tolist() == clf.predict(IMAGES).tolist()
    assert clf.decision_function(IMAGES).argmax(1).tolist() == scores.argmax(1).tolist()


def test_a_clone_has_the_parameters_and_nothing_else() -> None:
    clf = fitted(mu=0.1, classes=["ape", "bee", "cat"])
    copy = clone(clf)
    assert copy.get_params() == clf.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(IMAGES)
    copy.set_params(mu=0.5).fit(IMAGES, LABELS, owners=OWNERS, core=CORE)
    assert digests(copy)[0] != digests(clf)[0]
    assert is_classifier(clf)
    with pytest.raises(ValueError, match="Invalid parameter 'ridge'"):
        clf.set_params(ridge=1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda clf: clf.predict(IMAGES),
        lambda clf: clf.predict_proba(IMAGES),
        lambda clf: clf.decision_function(IMAGES),
        lambda clf: clf.score(IMAGES, LABELS),
        lambda clf: clf.forget(owner="u1"),
        lambda clf: clf.add(IMAGES, LABELS),
        lambda clf: clf.save("nowhere"),
        lambda clf: clf.verify(),
        lambda clf: clf.scan(owner="u1"),
        lambda clf: clf.audit("digits", owner="u1"),
        lambda clf: clf.classes_,
        lambda clf: clf.records_,
    ],
)
def test_not_fitted_is_both_kinds_of_error(ask: Any) -> None:
    for kind in (NotFittedError, EffaceError):
        with pytest.raises(kind, match=r"not fitted yet. Fix: call fit\(images, labels\)"):
            ask(classifier())


def test_a_fitted_classifier_is_not_pickled() -> None:
    clf = fitted()
    with pytest.raises(EffaceError, match="nobody could be forgotten"):
        pickle.dumps(clf)
    assert pickle.loads(pickle.dumps(clone(clf))).get_params() == clf.get_params()


def test_the_tools_that_choose_models_work() -> None:
    clf = without_core()
    scores = cross_val_score(clf, IMAGES, LABELS, cv=3)
    predicted = cross_val_predict(clf, IMAGES, LABELS, cv=3)
    assert scores.shape == (3,)
    assert np.mean(scores) == pytest.approx(np.mean(predicted == LABELS))
    assert np.mean(scores) > 0.6  # a network of random weights, and a third is chance
    search = GridSearchCV(clf, {"mu": [0.01, 1e6]}, cv=3, error_score="raise").fit(IMAGES, LABELS)
    assert search.best_params_ == {"mu": 0.01}
    assert search.predict(IMAGES[:2]).shape == (2,)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "tpu"}, "there is no device 'tpu'. Fix: use auto, cuda, mps or cpu"),
        ({"device": None}, "there is no device None"),
        ({"features": 0}, "user.features should be greater than"),
        ({"user": "linear"}, "user.kind should be 'compact' or 'tangent'"),
        ({"core_fraction": 2}, "data.core_fraction should be less than"),
        ({"backbone": "resnet"}, "unknown backbone 'resnet'"),
        ({"arithmetic": "exact"}, "user.arithmetic should be"),
        ({"classes": ["ape", "ape", "bee"]}, "class 'ape' is listed 2 times"),
        ({"classes": ["ape"]}, "label 'bee' is not one of the classes"),
    ],
)
def test_parameters_are_checked_when_it_is_fitted(options: dict[str, Any], text: str) -> None:
    clf = ForgettingClassifier(**options)
    with pytest.raises(EffaceError, match=text):
        clf.fit(IMAGES, LABELS, core=CORE)
    for device in ("auto", "cpu"):
        classifier(device=device).fit(IMAGES[:6], LABELS[:6], core=CORE)
