"""What a gate asks: tasks with their documents, prompts and scorers, from LongBench or made here."""
