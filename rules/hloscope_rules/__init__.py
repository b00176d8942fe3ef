"""hloscope's own rules, one file each. A file here that defines a `Rule` is found by being here;
files that begin with `_` are shared by rules and define none."""
