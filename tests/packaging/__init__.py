"""The package as users install and start it: wheel, command, Makefile, container files."""
