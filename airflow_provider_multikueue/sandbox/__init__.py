"""A real MultiKueue fleet on one machine, to try and to test DAGs on."""
