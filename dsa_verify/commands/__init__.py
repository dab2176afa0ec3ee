"""The subcommands, most in a file of their own, and what they share; what a command needs is imported inside it."""
