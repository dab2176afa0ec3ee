"""Development tools, no part of the package."""
