"""`python -m livingkv`: the command line where no script of that name is installed."""

from livingkv.cli import main

main()
