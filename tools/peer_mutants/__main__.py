"""`python -m tools.peer_mutants CHECKOUT`; see `run`."""

from tools.peer_mutants.run import main

main()
