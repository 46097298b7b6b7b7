"""A workspace: the directory that holds one model, and carries out requests so that a crash is no harm.

    CURRENT                                        names release and core; replaced by one rename
    core/<k>/                                      the core, its records, settings, what is promised
    releases/<n>/                                  what is served: user weights and settings
    private/<n>/                                   what later requests start from: records and sums
    private/partners.json                          who may send sums instead of records
    private/rows/                                  rows (compact), in files that releases share
    activations/                                   boundary activations (tangent)
    certificates/<n>.private.json <n>.public.json
    ledger.sqlite lock                             what was asked for and how far it got: ``told.py``

A request is intent → compute → new files → CURRENT → purge → done (``steps.Milestone`` has every step).
Until CURRENT is replaced the old release stands and the request can be computed anew from the intent; after
it, only deletions are left. So a kill at any point ends, when the workspace is next opened, in the state that
an undisturbed run ends in.

Of a forgotten record a keyed digest is kept, to refuse it when it comes again, and nothing else; see
``forgotten.py``.
"""

from efface.workspace.preview import Preview
from efface.workspace.protocol import Result
from efface.workspace.workspace import Workspace

__all__ = ["Preview", "Result", "Workspace"]
