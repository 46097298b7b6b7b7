"""``python -m efface`` is ``efface``."""

from efface.cli import main

if __name__ == "__main__":
    main()
