"""Images and the people they belong to: records, how they are read, named data sets."""
