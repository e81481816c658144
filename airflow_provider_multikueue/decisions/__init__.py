"""What is decided: functions of what was seen, without I/O and without Airflow."""
