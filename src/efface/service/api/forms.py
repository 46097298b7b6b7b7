"""What requests and replies look like, as types that the OpenAPI description is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from efface.service.identities import IdentityFormat, SubjectIdentity
from efface.service.states import CANCELLABLE, Regulation, State
from efface.service.tickets import Ticket
from efface.service.times import rfc3339, seconds_of

RFC3339 = r"^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d+)?([Zz]|[+-]\d{2}:\d{2})$"
TICKET_ID = r"^[0-9a-f]{24}$"


def _time(text: str) -> str:
    seconds_of(text)
    return text


def _printable(text: str) -> str:
    if any(0xD800 <= ord(c) < 0xE000 for c in text):  # halves of characters
        raise ValueError("not a text")
    return text


Time = Annotated[
    str,
    StringConstraints(pattern=RFC3339, max_length=40),
    AfterValidator(_time),
    Field(json_schema_extra={"format": "date-time"}),
]
PRINTABLE = r"^[^\x00-\x1f\x7f]+$"
Text = Annotated[
    str,
    StringConstraints(min_length=1, max_length=512, pattern=PRINTABLE),
    AfterValidator(_printable),
]


class JsonForm(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=False)


class IdentityForm(JsonForm):
    """Somebody's e-mail address, customer number, …; raw, or its hash in hexadecimal digits."""

    identity_type: Text
    identity_value: Text
    identity_format: IdentityFormat = IdentityFormat.RAW

    def identity(self) -> SubjectIdentity:
        return SubjectIdentity(self.identity_type, self.identity_value, self.identity_format)


Identities = Annotated[list[IdentityForm], Field(min_length=1, max_length=20)]


class SubmitForm(JsonForm):
    """A request to forget one person. ``external_id`` is yours: sent twice, it is one request."""

    model_config = ConfigDict(extra="forbid")

    external_id: Text
    identities: Identities
    regulation: Regulation = Regulation.GDPR
    submitted_time: Time | None = None


class StepReply(BaseModel):
    state: State
    time: str
    ledger_row: int


class TicketReply(BaseModel):
    """A request as it stands. ``problem`` says what keeps it open."""

    id: str
    source: str
    regulation: Regulation
    state: State
    reason: str
    received_time: str
    due_time: str
    release: int | None
    num_records: int | None
    problem: str
    can_be_cancelled: bool
    history: list[StepReply]

    @classmethod
    def of(cls, ticket: Ticket) -> TicketReply:
        steps = [
            StepReply(state=step.state, time=rfc3339(step.when), ledger_row=step.row)
            for step in ticket.history
        ]
        return cls(
            id=ticket.id,
            source=ticket.source,
            regulation=ticket.regulation,
            state=ticket.state,
            reason=ticket.reason,
            received_time=rfc3339(ticket.received),
            due_time=rfc3339(ticket.due),
            release=ticket.release,
            num_records=ticket.num_records,
            problem=ticket.problem,
            can_be_cancelled=ticket.state in CANCELLABLE,
            history=steps,
        )


class TicketsReply(BaseModel):
    requests: list[TicketReply]


class ScoreReply(BaseModel):
    label: str
    score: float


class PredictionReply(BaseModel):
    """What a release sees in an image; scores are softmax, not calibrated probabilities."""

    release: int
    label: str
    scores: list[ScoreReply]


class ModelReply(BaseModel):
    release: int
    classes: list[str]
    certificate: dict[str, Any] | None
