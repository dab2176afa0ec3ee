"""The tests of the suite; a package, so that no other installed `tests` takes its name."""
