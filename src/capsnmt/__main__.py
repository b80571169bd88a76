"""`python -m capsnmt`."""

from capsnmt.cli import main

main()
