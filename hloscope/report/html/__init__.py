"""The HTML report: one file that a browser opens offline, drawn from the report model and its JSON."""

from hloscope.report.html.page import render_diff as render_diff
from hloscope.report.html.page import render_html as render_html
from hloscope.report.html.page import require_libraries as require_libraries
