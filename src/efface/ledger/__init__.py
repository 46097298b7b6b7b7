"""The ledger: rows that are only ever added, each with the SHA-256 of the row before it, in a database.

    with Ledger.open("ledger.sqlite", create=True) as ledger:
        with ledger.transaction() as tx:          # all of it happens, or nothing
            tx.append("request", {"number": 1})   # a row of the chain
            tx.execute("INSERT INTO …", (…,))     # and whatever changes with it
        ledger.verify()

It names nobody: bodies hold numbers, digests, keyed hashes, states and times. SQLite for a path, PostgreSQL
for a URL. Nothing here loads torch.
"""

from efface.ledger.ledger import Ledger, Transaction
from efface.ledger.row import Head, LedgerRow

__all__ = ["Head", "Ledger", "LedgerRow", "Transaction"]
