"""Groups of subcommands, one file each; what a command needs is imported inside it."""
