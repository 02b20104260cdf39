"""`python -m tacit` is the command `tacit`."""

from tacit.cli.app import main

main()
