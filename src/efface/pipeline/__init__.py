"""The jobs that commands do: configure, check, train, compare, try, demonstrate."""
