"""Reports: one model, and what renders it. A renderer knows no rule and computes no figure."""

from hloscope.report.model import Report as Report
