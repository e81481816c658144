"""Run GPU jobs on a Kueue MultiKueue fleet from Apache Airflow."""

__version__ = "0.1.0"

__all__ = ["__version__"]
