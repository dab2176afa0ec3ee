"""THE SUITE: every kernel of every chosen provider, on every scenario, judged by every check."""

import pytest


@pytest.mark.parity
def test_parity(parity_case, parity_run):
    """One case; `--provider --surface --scenario --tier` choose them, `dsa-verify show NAME` explains one."""
    parity_run(parity_case)
