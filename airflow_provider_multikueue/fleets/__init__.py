"""A manager and its workers: submit a job there, follow it, stop it, and look after the fleet."""
