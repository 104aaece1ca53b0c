"""Shared by all tests: with `--forbid-skips` a skipped test fails the session; a green run has run everything."""

from __future__ import annotations

import signal

import pytest

# a shell's background job ignores interrupts, and so would every process that a test starts in order to interrupt it
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forbid-skips", action="store_true", help="fail the session if any test was skipped")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--forbid-skips"):
        return
    skipped = len(reporter.stats.get("skipped", []))
    if skipped and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"{skipped} tests were skipped, and --forbid-skips was given", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
