"""``python -m airflow_provider_multikueue`` is the ``multikueue`` command."""

import sys

from airflow_provider_multikueue.cli import main

if __name__ == "__main__":
    sys.exit(main())
