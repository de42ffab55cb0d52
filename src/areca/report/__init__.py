"""Figures and the HTML report, from files only: run directories, ladders, a quickstart's directory."""

from areca.report.page import build_report

__all__ = ["build_report"]
