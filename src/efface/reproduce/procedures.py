"""The forgetting methods of the figures: those of the table in ``efface.audit.methods``, as run here.

Every method gets the same help from the specimen: SGD the largest step that is sure to be stable, the solver
the preconditioner from core images. Nothing is certified from a state in between, so SGD does not compute its
residual in float64, and a solve that ran out of its budget goes on with what it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from efface.audit.methods import METHODS, Method
from efface.reproduce.specimen import Choice, Run, Specimen


@dataclass(frozen=True)
class Procedure:
    """One method in a figure.

    Args:
        name: what a finished run is kept under.
        choice: the method, for a specimen.
        released: what it returns is looked at as it is; other methods get the planned noise first.
        together: all requests are carried out as one.
    """

    name: str
    choice: Choice
    released: bool = False
    together: bool = False

    def run(self, specimen: Specimen) -> Run:
        """All requests, from the trained weights."""
        if self.together:
            return specimen.at_once(self.choice)
        return specimen.run(self.name, self.choice)


def _sgd(method: str, epochs: int) -> Choice:
    return lambda specimen: METHODS[method].having(epochs=epochs, step=specimen.rate, dtype=None)


def paper(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.9."""
    return Procedure(f"paper-{epochs}", _sgd("paper-0.9", epochs))


def paper_as_printed(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.999."""
    return Procedure(f"paper-{epochs}-0.999", _sgd("paper-0.999", epochs))


def fine_tuned(epochs: int) -> Procedure:
    """The same steps with the gradient of each minibatch alone."""
    return Procedure(f"fine-tune-{epochs}", _sgd("fine-tune", epochs))


def _solved(specimen: Specimen) -> Method:
    return METHODS["solved"].having(by=specimen.solving, strict=False, on_grid=False)


ORIGINAL = Procedure("original", lambda specimen: METHODS["original"], released=True)
SOLVED = Procedure("solved", _solved, released=True)
# Noise does not add up to forgetting: Fisher's is put on once, for all requests together.
FISHER = Procedure(
    "fisher", lambda specimen: METHODS["fisher"].having(hides=True), released=True, together=True
)
