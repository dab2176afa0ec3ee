"""What a gate asks: tasks with their documents, prompts and scorers, from public data sets or made here."""
