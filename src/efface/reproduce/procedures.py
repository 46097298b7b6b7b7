"""The forgetting methods of the figures: those of the table in ``efface.audit.methods``, as run here.

SGD has the largest step that is sure to be stable, which is the paper's best chance, or the printed one.
Nothing is certified from a state in between, so SGD does not compute its residual in float64, and a solve
that ran out of its budget goes on with what it has; what it proved is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from efface.audit.methods import METHODS, Method
from efface.reproduce.method_run import Run
from efface.reproduce.specimen import Choice, Specimen


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
            return specimen.at_once(self.name, self.choice)
        return specimen.run(self.name, self.choice)


def _sgd(method: str, epochs: int) -> Choice:
    return lambda specimen: METHODS[method].having(epochs=epochs, step=specimen.rate, dtype=None)


def paper(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.9."""
    return Procedure(f"paper-{epochs}", _sgd("paper-0.9", epochs))


def paper_at_printed_rate(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.9 and its printed rate, whether that is stable here or not."""

    def choice(specimen: Specimen) -> Method:
        step = specimen.printed_rate
        return METHODS["paper-0.9"].having(epochs=epochs, step=step, dtype=None)

    return Procedure(f"paper-{epochs}-printed", choice)


def paper_as_printed(epochs: int) -> Procedure:
    """The paper's SGD with momentum 0.999."""
    return Procedure(f"paper-{epochs}-0.999", _sgd("paper-0.999", epochs))


def fine_tuned(epochs: int) -> Procedure:
    """The same steps with the gradient of each minibatch alone."""
    return Procedure(f"fine-tune-{epochs}", _sgd("fine-tune", epochs))


ORIGINAL = Procedure("original", lambda specimen: METHODS["original"], released=True)
# The answer does not depend on the way: one solve for all requests leaves what ten in a row would.
SOLVED = Procedure("solved", lambda specimen: specimen.solving, released=True, together=True)
# Noise does not add up to forgetting: Fisher's is put on once, for all requests together.
FISHER = Procedure(
    "fisher", lambda specimen: METHODS["fisher"].having(hides=True), released=True, together=True
)
