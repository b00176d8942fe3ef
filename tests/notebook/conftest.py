"""The report with hostile names, and the browser, are those of the reports' tests."""

from tests.report.conftest import browser as browser
from tests.report.conftest import hostile as hostile
from tests.report.conftest import hostile_file as hostile_file
