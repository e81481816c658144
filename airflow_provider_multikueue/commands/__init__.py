"""Commands of ``multikueue`` beside the sandbox's; each is a module with ``add_arguments`` and ``run``."""
