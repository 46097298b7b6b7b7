"""The user parts: what is learnt from user records, and forgets them. One folder each."""
