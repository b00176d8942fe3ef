"""hloscope within a running Python: a step defined in a notebook's cell, the magic, progress that fits there."""
