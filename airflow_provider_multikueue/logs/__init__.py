"""From the bytes of a pod's log on some worker to the records of a task's log, each line once."""
