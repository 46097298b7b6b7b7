"""The tables of the service, in the database of the ledger. SQL that SQLite and PostgreSQL both read.

Times are seconds since 1970. What names a person (``owners``, ``body``, ``external``) is there only until a
request has ended; what stays are keyed hashes, which are names to nobody without the workspace's key.
"""

from __future__ import annotations

STATEMENTS = (
    """CREATE TABLE IF NOT EXISTS service_tickets (
        id TEXT PRIMARY KEY,
        source TEXT NOT NULL,
        external_tag TEXT NOT NULL,
        body_tag TEXT NOT NULL,
        client TEXT NOT NULL,
        regulation TEXT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT NOT NULL,
        received DOUBLE PRECISION NOT NULL,
        due DOUBLE PRECISION NOT NULL,
        changed DOUBLE PRECISION NOT NULL,
        release INTEGER,
        num_records INTEGER,
        problem TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        not_before DOUBLE PRECISION NOT NULL,
        history TEXT NOT NULL,
        owners TEXT,
        external TEXT,
        body TEXT,
        UNIQUE (source, external_tag)
    )""",
    "CREATE INDEX IF NOT EXISTS service_tickets_state ON service_tickets (state, received)",
    """CREATE TABLE IF NOT EXISTS service_wishes (
        ticket TEXT NOT NULL,
        kind TEXT NOT NULL,
        url TEXT NOT NULL,
        token TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS service_wishes_ticket ON service_wishes (ticket)",
    """CREATE TABLE IF NOT EXISTS service_named (
        ticket TEXT NOT NULL,
        tag TEXT NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS service_named_tag ON service_named (tag)",
    """CREATE TABLE IF NOT EXISTS service_callbacks (
        id TEXT PRIMARY KEY,
        ticket TEXT NOT NULL,
        kind TEXT NOT NULL,
        url TEXT NOT NULL,
        token TEXT NOT NULL,
        external TEXT NOT NULL,
        status TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        not_before DOUBLE PRECISION NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS service_leases (
        name TEXT PRIMARY KEY,
        holder TEXT NOT NULL,
        until DOUBLE PRECISION NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS service_keys (
        name TEXT PRIMARY KEY,
        role TEXT NOT NULL,
        digest TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS service_hooks (
        release INTEGER NOT NULL,
        hook TEXT NOT NULL,
        PRIMARY KEY (release, hook)
    )""",
    """CREATE TABLE IF NOT EXISTS service_evaluations (
        release INTEGER PRIMARY KEY,
        accuracy DOUBLE PRECISION NOT NULL,
        num_records INTEGER NOT NULL,
        measured DOUBLE PRECISION NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS service_servers (
        name TEXT PRIMARY KEY,
        release INTEGER NOT NULL,
        seen DOUBLE PRECISION NOT NULL
    )""",
)
