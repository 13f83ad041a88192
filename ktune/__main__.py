"""`python -m ktune`."""

from ktune.cli.main import main

main()
