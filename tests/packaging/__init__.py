"""Tests of what a user installs and types: the wheel, the command, make, the README."""
