"""From findings to measured changes: what could be tried on a step, what each try brought, what is kept."""
