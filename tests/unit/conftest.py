"""Tests in a browser run where there is one; elsewhere they are not collected, and the end of the run says so."""

from tests.unit import chromium

_IN_A_BROWSER = "test_report_in_chromium.py"
_BROWSER = chromium.find()
collect_ignore = [] if _BROWSER else [_IN_A_BROWSER]


def pytest_configure(config):
    config.addinivalue_line("markers", "chromium: opens a page in a headless Chromium")


def pytest_terminal_summary(terminalreporter):
    if _BROWSER is None:
        terminalreporter.write_line(
            f"not run: {_IN_A_BROWSER}, for want of a Chromium; put one on PATH, or its path into {chromium.VARIABLE}"
        )
