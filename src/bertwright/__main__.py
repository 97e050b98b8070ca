"""`python -m bertwright`."""

from bertwright.cli.main import main

if __name__ == "__main__":
    main()
