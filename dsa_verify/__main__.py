"""`python -m dsa_verify` is `dsa-verify`."""

from dsa_verify.cli import main

if __name__ == "__main__":
    main()
