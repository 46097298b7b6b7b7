"""DER, as much of it as time stamps need: values with a tag, a length and a body, in their one spelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BOOLEAN, INTEGER, OCTETS, NULL, OID, TIME = 0x01, 0x02, 0x04, 0x05, 0x06, 0x18
SEQUENCE, SET = 0x30, 0x31


def inside(number: int) -> int:
    """The tag ``[number]`` of a value that holds others."""
    return 0xA0 | number


@dataclass(frozen=True)
class Der:
    """A value; ``raw`` is all of it as it was read."""

    tag: int
    body: bytes
    raw: bytes

    def parts(self) -> list[Der]:
        return list(_read(self.body))

    def expect(self, tag: int) -> Der:
        if self.tag != tag:
            raise ValueError(f"a value has tag {self.tag:#x} instead of {tag:#x}")
        return self

    def sequence(self) -> list[Der]:
        return self.expect(SEQUENCE).parts()


def parse(data: bytes) -> Der:
    """The one value that these bytes are; ValueError if they are not."""
    (found,) = _read(data)
    return found


def _read(data: bytes) -> Iterator[Der]:
    start = 0
    while start < len(data):
        tag, at = data[start], start + 1
        if tag & 0x1F == 0x1F:
            raise ValueError("a tag is too large")
        length, at = _length(data, at)
        if at + length > len(data):
            raise ValueError("a value is longer than what holds it")
        yield Der(tag, data[at : at + length], data[start : at + length])
        start = at + length


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length, in as few bytes as it needs, and where the body begins."""
    if at >= len(data):
        raise ValueError("a value has no length")
    first = data[at]
    if first < 0x80:
        return first, at + 1
    size = first & 0x7F
    written = data[at + 1 : at + 1 + size]
    length = int.from_bytes(written)
    if not 1 <= size <= 4 or len(written) < size or length < 0x80 or not written[0]:
        raise ValueError("a length is not spelt as DER spells it")
    return length, at + 1 + size


def value(tag: int, *parts: bytes) -> bytes:
    """A value of these parts."""
    body = b"".join(parts)
    size = len(body)
    if size < 0x80:
        return bytes([tag, size]) + body
    written = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(written)]) + written + body


def integer(number: int) -> bytes:
    """Of a number that is not negative."""
    return value(INTEGER, number.to_bytes(number.bit_length() // 8 + 1))


def oid(name: str) -> bytes:
    """An object identifier, from its numbers with dots."""
    first, second, *others = (int(part) for part in name.split("."))
    coded = bytearray()
    for number in (40 * first + second, *others):
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(0x80 | number & 0x7F)
        coded += bytes(reversed(digits))
    return value(OID, bytes(coded))
