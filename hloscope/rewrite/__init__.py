"""Changing a step where that is proved to change no result: valid-row kernels for the dead rows of ragged buffers."""
