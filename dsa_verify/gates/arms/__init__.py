"""Who answers a gate: the built-in model, servers, servers started for it, and recorded answers."""
