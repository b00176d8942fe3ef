"""The command line: one file per command, each thin; errors are caught once, in `main`."""
