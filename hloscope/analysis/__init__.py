"""Analyses: a module in, a frozen result out. An analysis knows neither rules nor renderers."""
