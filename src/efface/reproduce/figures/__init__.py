"""One file per figure of the paper; ``efface.reproduce.catalog`` lists them."""
