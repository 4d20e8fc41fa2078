"""``python -m lab``, from the repository's root."""

from lab.cli import main

if __name__ == "__main__":
    main()
