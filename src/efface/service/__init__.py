"""The deletion service: requests come in over HTTP, are carried out together, and end in a receipt.

From the ground up: ``states`` (what can happen to a request), ``desk`` (the table of requests,
every change with a row of the ledger), ``identities`` (who is meant), ``worker`` (carries requests
out), ``hooks`` (what has to happen to copies of the model elsewhere), ``api`` and ``page`` (how it
is spoken to).
"""
