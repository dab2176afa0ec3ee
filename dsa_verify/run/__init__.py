"""Running cases: one kernel on one scenario, many in worker processes, random ones, parts of a plan, a device mesh."""
