"""THE SUITE: every kernel of every chosen provider, on every scenario, judged by every check."""

import pytest


@pytest.mark.parity
def test_parity(dsa_case, dsa_run):
    """One case; `--dsa-provider --dsa-surface --dsa-scenario --dsa-tier` choose, `dsa-verify show NAME` explains."""
    dsa_run(dsa_case)
