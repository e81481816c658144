"""What waiting, submitting and logging cost, beside Airflow's own Kubernetes trigger: ``make bench``."""
