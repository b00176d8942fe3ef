"""What XProf knows of a module, for checking: run with XProf's own Python, prints one JSON object.

    python _xprof_view.py RUN_FOLDER MODULE TEXT_FILE

Its peak heap, and (into TEXT_FILE) the module as the text that `query_hlo_graph` counts in.
"""

import json
import sys
from pathlib import Path

from xprof.convert import raw_to_tool_data

folder, module, place = sys.argv[1:]
trace = [f"{folder}/h.xplane.pb"]
memory, _ = raw_to_tool_data.xspace_to_tool_data(trace, "memory_viewer", {"module_name": module})
options = {"module_name": module, "type": "short_txt"}
text, _ = raw_to_tool_data.xspace_to_tool_data(trace, "graph_viewer", {"graph_viewer_options": options})
Path(place).write_bytes(text if isinstance(text, bytes) else text.encode())
print(json.dumps({"peak_mib": json.loads(memory)["peakHeapMib"]}))
